"""FeatureKMeans against k-means and kernel k-means written out, and its loop for devices, run on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import adjusted_rand_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from tests.conftest import as_numpy
from tests.reference.nystroem import inertia, kernel_kmeans_objective
from threadpoolctl import threadpool_limits

from ntkit import CNTKSketch, NTKFeatures, RandomFourierFeatures, _lloyd
from ntkit._lloyd import lloyd
from ntkit.diagnostics import projection_cost_error
from ntkit.features.landmarks.nystroem import NystroemFeatures
from ntkit.kernels import cntk, gaussian, ntk
from ntkit.models import kmeans
from ntkit.models.kmeans import FeatureKMeans

LEVEL = 1e-6


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On a busy machine threads of BLAS wait for each other."""
    with threadpool_limits(1):
        yield


def blobs(rng, n=60, k=3, d=3, dtype=np.float64):
    """Rows of k clusters that are far apart, and their numbers."""
    labels = np.arange(n) % k
    return (10 * np.eye(k, d)[labels] + rng.standard_normal((n, d))).astype(dtype), labels


def identity(k=3, **parameters):
    """Features that are the rows themselves."""
    return FeatureKMeans(FunctionTransformer(), k, random_state=0, **parameters)


def fourier(k=3, **parameters):
    return FeatureKMeans(
        RandomFourierFeatures(n_components=64, lengthscale=5.0, random_state=0), k, random_state=0, **parameters
    )


# Against k-means of the features.


def test_clusters_equal_kmeans_on_the_features(rng):
    X, truth = blobs(rng)
    model = fourier().fit(X)
    Z = model.features_.transform(X)
    assert adjusted_rand_score(model.labels_, truth) == 1
    assert model.labels_.dtype == np.int64
    for j in range(3):
        np.testing.assert_allclose(model.cluster_centers_[j], Z[model.labels_ == j].mean(axis=0), atol=1e-12)
    assert model.inertia_ == pytest.approx(inertia(Z, model.labels_, model.cluster_centers_))
    assert model.score(X) == pytest.approx(-model.inertia_)
    distances = np.linalg.norm(Z[:, None] - model.cluster_centers_[None], axis=2)
    np.testing.assert_allclose(model.transform(X), distances, atol=1e-10)
    np.testing.assert_array_equal(model.predict(X), distances.argmin(axis=1))
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    np.testing.assert_array_equal(clone(model).fit_predict(X), model.labels_)
    np.testing.assert_allclose(clone(model).fit_transform(X), distances, atol=1e-10)
    assert model.n_iter_ >= 1
    assert list(model.get_feature_names_out()) == [f"featurekmeans{j}" for j in range(3)]
    fresh, truth = blobs(np.random.default_rng(1), 30)
    assert adjusted_rand_score(model.predict(fresh), truth) == 1


def test_weights(rng):
    X, _ = blobs(rng, 40, k=2, d=2)
    weight = rng.integers(1, 4, 40)
    model, repeated = identity(2).fit(X, sample_weight=weight), identity(2).fit(np.repeat(X, weight, axis=0))
    order = np.argsort(model.cluster_centers_[:, 0]), np.argsort(repeated.cluster_centers_[:, 0])
    np.testing.assert_allclose(model.cluster_centers_[order[0]], repeated.cluster_centers_[order[1]])
    assert model.inertia_ == pytest.approx(repeated.inertia_)
    assert model.score(X, sample_weight=weight) == pytest.approx(-model.inertia_)
    assert model.inertia_ == pytest.approx(inertia(X, model.labels_, model.cluster_centers_, weight))


def test_more_starts_are_no_worse(rng):
    X = rng.standard_normal((200, 4))
    few, many = (identity(10, n_init=n).fit(X).inertia_ for n in (1, 10))
    assert many <= few
    assert identity(10, max_iter=1).fit(X).n_iter_ == 1


def test_clusters_that_kmeans_on_rows_cannot_separate():
    """A disc within a ring: the kernel separates them, the rows do not."""
    rng = np.random.default_rng(0)
    angles, truth = rng.uniform(0, 2 * np.pi, 400), np.arange(400) < 200
    X = np.where(truth, 0.3, 3.0)[:, None] * np.column_stack([np.cos(angles), np.sin(angles)])
    features = NystroemFeatures("gaussian", n_components=100, lengthscale=0.4, random_state=0)
    model = FeatureKMeans(features, 12, n_init=5, random_state=0).fit(X)
    inner = set(model.labels_[truth])
    assert not inner & set(model.labels_[~truth])
    assert adjusted_rand_score(KMeans(2, n_init=5, random_state=0).fit_predict(X), truth) < 0.2


def test_default_features(rng):
    X, truth = blobs(rng)
    model = FeatureKMeans(n_clusters=3, random_state=0).fit(X)
    assert adjusted_rand_score(model.labels_, truth) == 1
    assert model.cluster_centers_.shape == (3, model.features_.transform(X).shape[1])
    assert repr(FeatureKMeans()) == "FeatureKMeans()"


# The objective of the kernel.


def test_objective_equals_the_kernel_objective(rng, monkeypatch):
    X, _ = blobs(rng)
    model = fourier().fit(X)
    K = gaussian(X, lengthscale=5.0)
    expected = kernel_kmeans_objective(K, model.labels_)
    for tile in (1024, 7, 1):
        monkeypatch.setattr(kmeans, "_TILE", tile)
        assert model.kernel_objective(X) == pytest.approx(expected, rel=1e-10)
        assert model.kernel_objective(X, kernel="gaussian", lengthscale=5.0) == pytest.approx(expected, rel=1e-10)
    labels = rng.integers(0, 5, 60)
    assert model.kernel_objective(X, labels) == pytest.approx(kernel_kmeans_objective(K, labels))
    assert model.kernel_objective(X, labels.astype(str)) == pytest.approx(kernel_kmeans_objective(K, labels))
    assert model.kernel_objective(X, np.zeros(60)) == pytest.approx(kernel_kmeans_objective(K, np.zeros(60)))
    assert model.kernel_objective(X, np.arange(60)) == 0
    other = model.kernel_objective(X, kernel=lambda A, B: A @ B.T)
    assert other == pytest.approx(kernel_kmeans_objective(X @ X.T, model.labels_))
    assert other == pytest.approx(inertia(X, model.labels_, [X[model.labels_ == j].mean(0) for j in range(3)]) / 60)


def test_objective_of_all_kinds_of_rows_and_features(rng):
    import pandas as pd
    import torch

    X, _ = blobs(rng)
    X = np.abs(X)
    scaled = StandardScaler(with_mean=False).fit_transform(X)
    feature_map = NTKFeatures(depth=2, n_components=128, random_state=0)
    pipeline = make_pipeline(StandardScaler(with_mean=False), feature_map)
    nested = make_pipeline(make_pipeline(StandardScaler(with_mean=False), "passthrough"), make_pipeline(feature_map))
    for features in (pipeline, nested, FrozenEstimator(clone(pipeline).fit(X))):
        model = FeatureKMeans(features, 3, random_state=0).fit(X)
        expected = kernel_kmeans_objective(ntk(scaled, depth=2), model.labels_)
        for rows in (X, sp.csr_array(X), pd.DataFrame(X)):
            assert model.kernel_objective(rows, model.labels_) == pytest.approx(expected)
        assert model.kernel_objective(X, kernel="ntk", depth=2) == pytest.approx(expected)
    model = FeatureKMeans(feature_map, 3, random_state=0).fit(X)
    assert model.kernel_objective(torch.from_numpy(X)) == pytest.approx(model.kernel_objective(X))


def test_objective_from_samples_is_unbiased(rng):
    """False alarms: 1e-6. Means of few rows are nearer to them: the plug-in estimate would be a third too small."""
    X = rng.standard_normal((200, 3))
    labels = rng.integers(0, 4, 200)
    labels[:2] = 7
    labels[2] = 8
    model = fourier().fit(X)
    exact = model.kernel_objective(X, labels)
    estimates = [model.kernel_objective(X, labels, n_samples=16, random_state=seed) for seed in range(400)]
    t = stats.t.isf(LEVEL / 2, 399)
    error = t * np.std(estimates, ddof=1) / 20
    assert abs(np.mean(estimates) - exact) < error
    assert error < 0.06 * exact
    assert model.kernel_objective(X, labels, n_samples=10**6) == pytest.approx(exact)
    assert model.kernel_objective(X, labels, n_samples=9, random_state=0) == model.kernel_objective(
        X, labels, n_samples=9, random_state=0
    )


def test_clusters_of_features_are_good_ones_of_the_kernel(rng):
    """The bound of the docstring, for clusters that k-means is sure to find: γ = 0."""
    X, _ = blobs(rng, 90)
    K = gaussian(X, lengthscale=5.0)
    model = FeatureKMeans(
        NystroemFeatures("gaussian", n_components=20, lengthscale=5.0, random_state=0), 3, random_state=0
    ).fit(X)
    eps = projection_cost_error(K, model.features_.transform(X), 3)
    assert 1e-4 < eps < 0.9
    values, vectors = np.linalg.eigh(K)
    exact = KMeans(3, n_init=5, random_state=0).fit(vectors * np.sqrt(np.clip(values, 0, None)))
    best = kernel_kmeans_objective(K, exact.labels_)
    assert best == pytest.approx(exact.inertia_ / 90)
    assert model.kernel_objective(X) <= (1 + eps) / (1 - eps) * best * (1 + 1e-12)
    assert (1 - eps) * best <= model.inertia_ / 90 <= (1 + eps) * best


def test_bad_uses_of_the_objective(rng):
    X, _ = blobs(rng)
    model = fourier().fit(X)
    with pytest.raises(
        ValueError, match=r"'labels' parameter of FeatureKMeans.kernel_objective must be None or an arr"
    ):
        model.kernel_objective(X, np.zeros(3))
    with pytest.raises(ValueError, match=r"'n_samples' parameter of FeatureKMeans.kernel_objective must be an int ≥ 1"):
        model.kernel_objective(X, n_samples=0)
    with pytest.raises(ValueError, match=r"'random_state' parameter of FeatureKMeans.kernel_objective"):
        model.kernel_objective(X, random_state=-1)
    with pytest.raises(TypeError, match=r"got kernel parameters \['depth'\], but no kernel"):
        model.kernel_objective(X, depth=2)
    with pytest.raises(TypeError, match=r"'kernel' parameter of FeatureKMeans.kernel_objective must be given"):
        identity().fit(X).kernel_objective(X)
    with pytest.raises(NotFittedError):
        FeatureKMeans().kernel_objective(X)


# Array libraries, types, blocks.


@pytest.mark.parametrize("kind", ["csr", "frame", "list", "torch", "float32", "memmap"])
def test_all_kinds_of_rows(kind, rng, tmp_path):
    import pandas as pd
    import torch

    X, _ = blobs(rng)
    rows = {"csr": sp.csr_array, "frame": lambda X: pd.DataFrame(X).add_prefix("x"), "list": np.ndarray.tolist,
            "torch": torch.from_numpy, "float32": np.float32, "memmap": np.asarray}[kind](X)  # fmt: skip
    if kind == "memmap":
        rows = np.memmap(tmp_path / "rows", dtype=X.dtype, mode="w+", shape=X.shape)
        rows[:] = X
    expected = fourier().fit(X)
    model = fourier().fit(rows)
    assert adjusted_rand_score(as_numpy(model.labels_), expected.labels_) == 1
    assert model.inertia_ == pytest.approx(expected.inertia_, rel=1e-5)
    assert isinstance(model.cluster_centers_, np.ndarray)
    labels, distances = model.predict(rows), model.transform(rows)
    assert isinstance(labels, torch.Tensor) == isinstance(model.labels_, torch.Tensor) == (kind == "torch")
    assert ("float32" in str(distances.dtype)) == (kind == "float32")
    np.testing.assert_array_equal(as_numpy(labels), as_numpy(model.labels_))
    assert model.score(rows) == pytest.approx(-model.inertia_, rel=1e-5)
    assert model.kernel_objective(rows) == pytest.approx(expected.kernel_objective(X), rel=1e-5)


def test_blocks_do_not_matter(rng):
    X, _ = blobs(rng)
    expected = fourier().fit(X)
    for batch_size in (1, 7, 1000):
        model = fourier(batch_size=batch_size).fit(X)
        np.testing.assert_array_equal(model.labels_, expected.labels_)
        np.testing.assert_allclose(model.transform(X), expected.transform(X), atol=1e-9)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_images(library, rng):
    import torch

    X = rng.integers(0, 3, (12, 3, 3, 1), dtype=np.uint8)
    X[6:] += 100
    images = X if library == "numpy" else torch.from_numpy(X)
    model = FeatureKMeans(CNTKSketch(depth=2, n_components=64, random_state=0), 2, random_state=0).fit(images)
    assert adjusted_rand_score(as_numpy(model.labels_), np.arange(12) < 6) == 1
    assert model.n_features_in_ == 9
    expected = kernel_kmeans_objective(cntk(X.astype(np.float64), depth=2), as_numpy(model.labels_))
    assert model.kernel_objective(images) == pytest.approx(expected, rel=1e-4)


def test_features_in_sparse_matrices(rng):
    X, truth = blobs(rng)
    model = FeatureKMeans(FunctionTransformer(sp.csr_array), 3, random_state=0).fit(X)
    assert adjusted_rand_score(model.labels_, truth) == 1


# Few and equal rows.


def test_few_and_equal_rows():
    assert identity(1).fit([[1.0]]).inertia_ == 0
    model = identity(3).fit(np.eye(3))
    assert sorted(model.labels_) == [0, 1, 2]
    assert model.inertia_ == 0
    for X in (np.zeros((5, 2)), np.ones((5, 1))):
        with pytest.warns(ConvergenceWarning):
            model = identity(3).fit(X)
        assert model.inertia_ == 0
        assert model.kernel_objective(X, kernel="polynomial") == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("size", [1e-15, 1e15])
def test_huge_and_tiny_rows(size, rng):
    X, truth = blobs(rng)
    model = FeatureKMeans(NTKFeatures(n_components=64, random_state=0), 3, random_state=0).fit(size * X)
    assert adjusted_rand_score(model.labels_, truth) == 1
    np.testing.assert_array_equal(model.predict(size * X), model.labels_)
    np.testing.assert_allclose(model.score(size * X), -model.inertia_, rtol=1e-6)


# The loop for tensors, which devices take.


def torch_rows(X):
    import torch

    return torch.from_numpy(np.ascontiguousarray(X))


def run(X, k, seed=0, **parameters):
    options = {"max_iter": 300} | parameters
    return lloyd(torch_rows(X), k, seed=np.random.SeedSequence(seed), **options)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_loop_finds_clusters(dtype, rng):
    X, truth = blobs(rng, dtype=dtype)
    found = run(X, 3)
    labels, centers = as_numpy(found.labels), as_numpy(found.centers)
    assert adjusted_rand_score(labels, truth) == 1
    assert centers.dtype == dtype
    for j in range(3):
        np.testing.assert_allclose(centers[j], X[labels == j].mean(axis=0), rtol=1e-5)
    assert found.inertia == pytest.approx(inertia(X, labels, centers), rel=1e-5)
    assert 1 <= found.n_iter <= 10


def test_loop_ends_when_the_objective_cannot_decrease(rng):
    """Every row is at its nearest centre, every centre is the mean of its rows."""
    X = rng.standard_normal((300, 3))
    found = run(X, 12)
    labels, centers = as_numpy(found.labels), as_numpy(found.centers)
    np.testing.assert_array_equal(labels, np.linalg.norm(X[:, None] - centers[None], axis=2).argmin(axis=1))
    for j in range(12):
        np.testing.assert_allclose(centers[j], X[labels == j].mean(axis=0), atol=1e-12)
    rough = run(X, 12, tol=0.5)
    assert rough.n_iter < found.n_iter
    assert rough.inertia >= found.inertia
    assert run(X, 12, max_iter=1).n_iter == 1


def test_loop_is_as_good_as_scikit_learn(rng):
    """Mean inertia over 20 seeds within 3 %; single ones spread by 2 %."""
    X = rng.standard_normal((400, 4)) * [1, 2, 3, 4]
    ours = np.mean([run(X, 15, seed).inertia for seed in range(20)])
    theirs = np.mean([KMeans(15, random_state=seed).fit(X).inertia_ for seed in range(20)])
    assert ours == pytest.approx(theirs, rel=0.03)
    best = [run(X, 15, n_init=n).inertia for n in (1, 8)]
    assert best[1] <= best[0]


def test_loop_with_weights(rng):
    import torch

    X, _ = blobs(rng, 40, k=2, d=2)
    weight = rng.integers(0, 4, 40)
    found = run(X, 2, weight=torch.from_numpy(weight.astype(np.float64)))
    repeated = run(np.repeat(X, weight, axis=0), 2)
    centers = [as_numpy(f.centers)[np.argsort(as_numpy(f.centers)[:, 0])] for f in (found, repeated)]
    np.testing.assert_allclose(*centers)
    assert found.inertia == pytest.approx(repeated.inertia)


def test_first_centres_are_spread(rng):
    """Of 30 far clusters greedy k-means++ meets all: in 20 seeds of 20. Uniform draws would miss a third."""
    X = 1000 * rng.standard_normal((30, 3))[np.arange(300) % 30] + rng.standard_normal((300, 3))
    for seed in range(20):
        picks = as_numpy(_lloyd.plus_plus(_lloyd.as_rows(torch_rows(X)), 30, np.random.default_rng(seed)))
        rows = (X[None] == picks[:, None]).all(axis=2).argmax(axis=1)
        assert len(set(rows % 30)) == 30


def test_rows_without_weight_are_no_first_centres(rng):
    """However far away they are: in 20 seeds of 20."""
    X = rng.standard_normal((60, 2))
    X[30:] += 1000
    rows = _lloyd.as_rows(torch_rows(X), torch_rows(np.repeat([1.0, 0.0], 30)))
    for seed in range(20):
        assert as_numpy(_lloyd.plus_plus(rows, 4, np.random.default_rng(seed))).max() < 100


def test_starts_and_tolerance_of_the_loop(rng, monkeypatch):
    """Starts are independent; the tolerance is relative to the mean variance of a column."""
    X = rng.standard_normal((200, 5)) * [1, 2, 3, 4, 5] + 7
    given = []
    monkeypatch.setattr(_lloyd, "iterate", lambda *args, original=_lloyd.iterate: given.append(args) or original(*args))
    run(X, 4, n_init=3, tol=0.25)
    starts = [as_numpy(centers) for _, centers, _, _ in given]
    assert len({start.tobytes() for start in starts}) == 3
    for *_, tolerance in given:
        assert tolerance == pytest.approx(0.25 * X.var(axis=0).mean())


def test_clusters_without_rows_restart():
    """Two of the three centres given are far from all rows: they take the rows farthest from the first."""
    rows = _lloyd.as_rows(torch_rows(np.array([[0.0], [0.1], [0.2], [5.0], [9.0]])))
    centers = torch_rows(np.array([[0.1], [1e6], [-1e6]]))
    labels, distances = _lloyd.nearest(rows, centers)
    assert set(as_numpy(labels)) == {0}
    means = _lloyd.means(rows, labels, distances, centers)
    np.testing.assert_allclose(np.sort(as_numpy(means)[:, 0]), [0.1, 5.0, 9.0])
    found = _lloyd.iterate(rows, centers, 100, 0.0)
    assert found.inertia == pytest.approx(0.02)


def test_loop_of_equal_rows():
    for X in (np.zeros((5, 2)), np.full((4, 3), 0.1)):
        found = run(X, 3)
        assert found.inertia == 0
        np.testing.assert_allclose(as_numpy(found.centers), X[:3])
    assert run(np.ones((1, 1)), 1).inertia == 0


def test_loop_far_from_the_origin(rng):
    """In float32 squares of 1000 would drown the clusters."""
    X, truth = blobs(rng)
    found = run((X / 10 + 1000).astype(np.float32), 3)
    assert adjusted_rand_score(as_numpy(found.labels), truth) == 1


def test_models_on_a_device(rng, monkeypatch):
    """As features in host memory come as NumPy arrays, they are made tensors again."""
    X, truth = blobs(rng)
    original = FeatureKMeans._features_of
    monkeypatch.setattr(FeatureKMeans, "_features_of", lambda self, rows: torch_rows(original(self, rows)))
    model = fourier().fit(torch_rows(X))
    assert adjusted_rand_score(as_numpy(model.labels_), truth) == 1
    assert isinstance(model.cluster_centers_, np.ndarray)
    np.testing.assert_array_equal(as_numpy(model.predict(torch_rows(X))), as_numpy(model.labels_))
    assert model.score(torch_rows(X)) == pytest.approx(-model.inertia_)
    weight = rng.integers(1, 3, 60)
    assert fourier().fit(X, sample_weight=weight).inertia_ > model.inertia_
    with pytest.warns(ConvergenceWarning, match="Only 1 of n_clusters=3 clusters have rows"):
        fourier().fit(np.ones((5, 2)))


def test_cuda(rng):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    X, truth = blobs(rng, 600)
    for dtype in (torch.float64, torch.float32):
        rows = torch.from_numpy(X).to("cuda", dtype)
        model = fourier(n_init=3).fit(rows)
        assert model.labels_.device == rows.device
        assert adjusted_rand_score(as_numpy(model.labels_), truth) == 1
        assert model.predict(rows).device == model.transform(rows).device == rows.device
        assert torch.equal(model.predict(rows), model.labels_)
        assert model.inertia_ == pytest.approx(fourier().fit(X).inertia_, rel=1e-4)
        assert model.kernel_objective(rows) == pytest.approx(fourier().fit(X).kernel_objective(X), rel=1e-4)
