"""Nyström features against their formula, leverage scores against exact ones, landmarks of all kinds."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.frozen import FrozenEstimator
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel
from sklearn.utils import get_tags
from tests.conftest import as_numpy
from tests.reference.nystroem import inclusion_probabilities, leverage_scores, nystroem_kernel
from tests.tiers import gpu
from threadpoolctl import threadpool_limits

from ntkit import FeatureRidge, networks
from ntkit.diagnostics import spectral_error, statistical_dimension
from ntkit.features.landmarks import choose as _landmarks
from ntkit.features.landmarks.nystroem import NystroemFeatures
from ntkit.kernels import KernelSpec, cntk, exponential, gaussian, gram, network_kernel, ntk, polynomial

LEVEL = 1e-6
CONV = networks.Sequential(networks.Conv(3), networks.ReLU(), networks.GlobalAvgPool(), networks.Dense())
DENSE_NET = networks.fully_connected(2)
KINDS = ("leverage", "uniform", "kmeans")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On a busy machine threads of BLAS wait for each other."""
    with threadpool_limits(1, user_api="blas"):
        yield


def unbalanced(n_rows, seed=0):
    """Nine rows of ten are in one tight cluster, the others in 40 wide clusters far away."""
    rng = np.random.default_rng(seed)
    centres = 6 * rng.standard_normal((41, 5))
    label = np.where(rng.random(n_rows) < 0.9, 0, rng.integers(1, 41, n_rows))
    return centres[label] + np.where(label == 0, 0.1, 0.5)[:, None] * rng.standard_normal((n_rows, 5))


def gram_of(features, X):
    Z = as_numpy(features.transform(X)).astype(np.float64)
    return Z @ Z.T


# The formula.

KERNELS = [
    ("gaussian", {"lengthscale": 1.5}, lambda X: gaussian(X, lengthscale=1.5)),
    ("exponential", {"lengthscale": 2.0}, lambda X: exponential(X, lengthscale=2.0)),
    ("ntk", {"depth": 3}, lambda X: ntk(X, depth=3)),
    ("nngp", {"depth": 2}, lambda X: gram("nngp", X, depth=2)),
    ("polynomial", {"kernel_params": {"degree": 3, "coef0": 1.0}}, lambda X: polynomial(X, degree=3, coef0=1.0)),
    ("dot_product", {"kernel_params": {"function": np.cosh}}, lambda X: np.cosh(X @ X.T)),
    (DENSE_NET, {"kernel_params": {"kind": "nngp"}}, lambda X: network_kernel(DENSE_NET, X, kind="nngp")),
    (laplacian_kernel, {"kernel_params": {"gamma": 0.3}}, lambda X: laplacian_kernel(X, gamma=0.3)),
]
OF_KERNELS = pytest.mark.parametrize(("kernel", "parameters", "exact"), KERNELS, ids=lambda value: str(value)[:20])


@OF_KERNELS
def test_features_equal_the_formula(kernel, parameters, exact, rng):
    for landmarks in ["leverage", "uniform"]:
        X = rng.standard_normal((60, 4))
        features = NystroemFeatures(kernel, n_components=20, landmarks=landmarks, random_state=0, **parameters).fit(X)
        K, chosen = exact(X), features.landmark_indices_
        assert len(set(chosen)) == 20
        np.testing.assert_array_equal(np.sort(chosen), chosen)
        np.testing.assert_array_equal(features.landmarks_, X[chosen])
        Z = features.transform(X)
        assert Z.shape == (60, 20)
        approximation = Z @ Z.T
        np.testing.assert_allclose(approximation, nystroem_kernel(K, chosen), atol=1e-9 * K.max())
        np.testing.assert_allclose(approximation[chosen], K[chosen], atol=1e-9 * K.max())  # exact for landmarks
        assert np.linalg.eigvalsh(K - approximation).min() > -1e-9 * K.max()
        assert np.linalg.norm(K - approximation) > 1e-6 * np.linalg.norm(K)
        assert features.estimate_error(X) == pytest.approx(np.linalg.norm(K - approximation) / np.linalg.norm(K))
        scaled = features.normalization_ * np.sqrt(np.diag(K)[chosen])[:, None]
        np.testing.assert_allclose(scaled, scaled.T, atol=1e-9)  # the inverse root of the scaled kernel


def test_unit_diagonals_give_the_symmetric_root(rng):
    """As scikit-learn has it: with equal landmarks the features themselves are equal."""
    X = rng.standard_normal((40, 3))
    theirs = Nystroem(gamma=0.5, n_components=15, random_state=0).fit(X)
    ours = NystroemFeatures("gaussian", landmarks=theirs.components_, lengthscale=1.0).fit(X)
    np.testing.assert_allclose(ours.transform(X), theirs.transform(X), atol=1e-8)


def test_all_rows_as_landmarks_are_exact(rng):
    X = rng.standard_normal((30, 3))
    for n_components in (30, 1024):
        for landmarks in ("leverage", "uniform"):
            features = NystroemFeatures("ntk", n_components=n_components, landmarks=landmarks).fit(X)
            np.testing.assert_array_equal(features.landmark_indices_, np.arange(30))
            assert features.transform(X).shape == (30, 30)
            np.testing.assert_allclose(gram_of(features, X), ntk(X, depth=1), atol=1e-12)
            assert len(features.get_feature_names_out()) == 30


def test_kernels_of_low_rank_are_exact(rng):
    """The quadratic kernel of four features has rank 10: more landmarks make a singular matrix."""
    X = rng.standard_normal((80, 4))
    K = polynomial(X, degree=2)
    for m in (10, 30):
        for landmarks in KINDS:
            features = NystroemFeatures("polynomial", n_components=m, landmarks=landmarks, random_state=0).fit(X)
            np.testing.assert_allclose(gram_of(features, X), K, atol=1e-9 * K.max())


def test_norms_over_decades_lose_no_digits(rng):
    """Without scaling to unit diagonal the directions of small rows would fall below the cut-off."""
    X = rng.standard_normal((40, 3)) * np.logspace(-9, 9, 40)[:, None]
    features = NystroemFeatures("ntk", n_components=40, random_state=0).fit(X)
    K = ntk(X, depth=1)
    norms = np.sqrt(np.diag(K))
    np.testing.assert_allclose(gram_of(features, X) / np.outer(norms, norms), K / np.outer(norms, norms), atol=1e-9)


def test_huge_and_tiny_rows(rng):
    for dtype in [np.float64, np.float32]:
        for size in [1e-15, 1e15]:
            X = rng.standard_normal((30, 4)).astype(dtype)
            for landmarks in KINDS:
                plain = NystroemFeatures("ntk", n_components=10, landmarks=landmarks, random_state=0).fit(X)
                features = clone(plain).fit((size * X).astype(dtype))
                Z = features.transform((size * X).astype(dtype))
                np.testing.assert_allclose(Z / size, plain.transform(X), atol=1e-4 if dtype == np.float32 else 1e-10)
            wide = NystroemFeatures("gaussian", n_components=10, random_state=0).fit((size * X).astype(dtype))
            assert 0 < wide.estimate_error((size * X).astype(dtype)) < 0.9


def test_kernels_that_overflow():
    X = 1e5 * np.eye(4)
    for landmarks in KINDS:
        features = NystroemFeatures("exponential", n_components=3, landmarks=landmarks, lengthscale=1.0)
        with (
            np.errstate(over="ignore"),
            pytest.raises(ValueError, match=r"kernel of the rows of X must be finite.*Stand"),
        ):
            features.fit(X)


@pytest.mark.parametrize("kernel", ["gaussian", "ntk"])
def test_few_and_equal_rows(kernel):
    for landmarks in KINDS:
        for X in (
            np.ones((1, 1)),
            np.zeros((1, 3)),
            np.zeros((5, 2)),
            np.ones((6, 2)),
            np.repeat(np.eye(3), 4, axis=0),
        ):
            features = NystroemFeatures(kernel, n_components=4, landmarks=landmarks, random_state=0).fit(X)
            Z = features.transform(X)
            assert Z.shape == (len(X), min(4, len(X)))
            assert np.isfinite(Z).all()
            if len(np.unique(X, axis=0)) == 1:
                np.testing.assert_allclose(Z @ Z.T, features.exact_kernel(X), atol=1e-12)
        X = np.vstack([np.zeros(3), np.eye(3)])
        Z = NystroemFeatures("ntk", n_components=3, landmarks=landmarks, random_state=0).fit(X).transform(X)
        np.testing.assert_array_equal(Z[0], 0)


# Leverage scores.


def of_rows(X, kernel="ntk", batch_size=None, **parameters):
    return _landmarks.ComputedMatrix(KernelSpec.resolve(kernel, parameters or {"depth": 1}, "test"), X, batch_size)


def test_scores_from_all_rows_are_exact(rng):
    for lam in [1e-3, 0.5, 30.0]:
        X = rng.standard_normal((50, 3))
        K, everything = ntk(X, depth=1), np.arange(50)
        exact = leverage_scores(K, lam)
        for matrix in (of_rows(X), of_rows(X, batch_size=7), of_rows(sp.csr_array(X)), _landmarks.StoredMatrix(K, 7)):
            scores = _landmarks.leverage_scores(matrix, everything, everything, alpha=lam)
            np.testing.assert_allclose(scores, exact, atol=1e-9)
        assert scores.sum() == pytest.approx(statistical_dimension(K, lam))
        few = _landmarks.leverage_scores(of_rows(X), np.array([4, 2]), everything, alpha=lam)
        np.testing.assert_allclose(few, exact[[4, 2]], atol=1e-9)


def test_scores_from_some_rows_are_never_too_small(rng):
    """K S (SᵀKS + λI)⁻¹ SᵀK ⪯ K (K + λI)⁻¹ K for any choice S of rows without weights."""
    for lam in [0.1, 3.0]:
        X = rng.standard_normal((60, 3))
        exact = leverage_scores(ntk(X, depth=1), lam)
        before = None
        for size in (1, 5, 30, 60):
            scores = _landmarks.leverage_scores(of_rows(X), np.arange(60), np.arange(size), alpha=lam)
            assert (scores >= exact - 1e-9).all()
            assert (scores <= 1).all()
            assert before is None or (scores <= before + 1e-9).all()
            before = scores
        np.testing.assert_allclose(scores, exact, atol=1e-9)


def test_weights_enter_the_scores(rng):
    """Rows with probability ½ count twice: as if they were there two times."""
    X = rng.standard_normal((20, 3))
    everything, twice = np.arange(20), np.repeat(np.arange(20), 2)
    halves = _landmarks.leverage_scores(of_rows(X), everything, everything, np.full(20, 0.5), alpha=1.0)
    doubled = _landmarks.leverage_scores(of_rows(X), everything, twice, alpha=1.0)
    np.testing.assert_allclose(halves, doubled, atol=1e-9)
    assert halves.sum() < 0.95 * _landmarks.leverage_scores(of_rows(X), everything, everything, alpha=1.0).sum()


def test_ridge_from_the_spectrum():
    """(1/k) Σ_{i>k} λ_i, k = ⌈s/(4 log s)⌉: 3 of 32."""
    values = np.arange(1.0, 33.0)
    assert _landmarks._ridge(values, values.sum()) == pytest.approx(np.arange(1, 30).sum() / 3)
    assert _landmarks._ridge(np.array([2.0]), 2.0) == 2.0
    assert _landmarks._ridge(np.array([0.0, 2.0]), 2.0) == pytest.approx(2e-12)


def test_probabilities_of_samples(rng):
    for size in [1, 3, 10, 29]:
        scores = rng.uniform(0.01, 1, 30) ** 3
        expected = inclusion_probabilities(scores, size)
        places, probabilities = _landmarks.sample(scores, size, rng)
        assert len(set(places)) == size
        np.testing.assert_allclose(probabilities, expected[places], rtol=1e-9)


def check_frequencies(draw, probabilities, n_seeds=4000):
    """Rows are drawn as often as they should. False alarms: 1e-6, split over the rows and two sides."""
    counts = np.zeros(len(probabilities))
    for seed in range(n_seeds):
        places = draw(np.random.default_rng(seed))
        assert len(set(places)) == len(places)
        counts[places] += 1
    low, high = (stats.binom.ppf(q, n_seeds, probabilities) for q in (LEVEL / 60, 1 - LEVEL / 60))
    assert ((counts >= low) & (counts <= high)).all()


def test_samples_have_their_probabilities():
    scores = np.random.default_rng(1).uniform(0.2, 1, 30) ** 6
    expected = inclusion_probabilities(scores, 8)
    assert (expected == 1).sum() >= 1
    assert expected.min() < 0.01
    check_frequencies(lambda rng: _landmarks.sample(scores, 8, rng)[0], expected)
    for fault in (np.ones(30), np.sqrt(scores)):
        with pytest.raises(AssertionError):
            check_frequencies(lambda rng, fault=fault: _landmarks.sample(fault, 8, rng)[0], expected)


def test_samples_of_rows_without_scores(rng):
    for scores, size in ((np.zeros(9), 4), (np.r_[1.0, 0.5, np.zeros(7)], 5)):
        places, _ = _landmarks.sample(scores, size, rng)
        assert len(set(places)) == size
        assert set(np.flatnonzero(scores)) <= set(places)


@pytest.mark.parametrize("kernel", ["gaussian", "ntk"])
def test_leverage_scores_find_small_clusters(kernel):
    """Errors (spectral norm) of 5 seeds together; for other seeds the ratio is 0.02 to 0.3. With uniform draws, about 6
    of 64 rows are outside the large cluster, but there are 41 clusters to cover.
    """
    X = unbalanced(1000)
    parameters = {"lengthscale": 3.0} if kernel == "gaussian" else {}
    errors = {}
    for landmarks in ("leverage", "uniform"):
        errors[landmarks] = 0.0
        for seed in range(5):
            features = NystroemFeatures(
                kernel, n_components=64, landmarks=landmarks, random_state=seed, **parameters
            ).fit(X)
            K = features.exact_kernel(X)
            errors[landmarks] += np.linalg.norm(K - gram_of(features, X))
    assert errors["leverage"] < 0.5 * errors["uniform"]


@pytest.mark.parametrize("m", [50, 100])
def test_leverage_scores_come_near_the_best_approximation(m):
    """‖K − Z Zᵀ‖ is below a quarter of (1/k) Σ_{i>k} λ_i, k = m/(4 log m), for ten seeds of ten; for 20 others it was
    0.02 to 0.12 of that. Uniform landmarks are above it."""
    X = unbalanced(800)
    K = ntk(X, depth=1)
    k = int(np.ceil(m / (4 * np.log(m))))
    bound = np.linalg.eigvalsh(K)[:-k].sum() / k / 4
    for seed in range(10):
        features = NystroemFeatures("ntk", n_components=m, random_state=seed).fit(X)
        assert np.linalg.eigvalsh(K - gram_of(features, X))[-1] < bound
    features = NystroemFeatures("ntk", n_components=m, landmarks="uniform", random_state=0).fit(X)
    assert np.linalg.eigvalsh(K - gram_of(features, X))[-1] > bound


def test_alpha_is_the_error_for_enough_landmarks(rng):
    """‖K − Z Zᵀ‖ ≤ λ for about s_λ log s_λ landmarks."""
    X = rng.standard_normal((500, 4))
    K, lam = gaussian(X, lengthscale=2.0), 1.0
    size = statistical_dimension(K, lam)
    m = int(3 * size * np.log(size))
    assert 60 < m < 400
    for seed in range(5):
        features = NystroemFeatures("gaussian", n_components=m, lengthscale=2.0, alpha=lam, random_state=seed).fit(X)
        assert np.linalg.norm(K - gram_of(features, X), 2) < lam
    few = NystroemFeatures("gaussian", n_components=int(size / 4), lengthscale=2.0, alpha=lam, random_state=0).fit(X)
    assert np.linalg.norm(K - gram_of(few, X), 2) > lam


def test_small_samples_are_the_rule(monkeypatch, rng):
    """Never more kernel values at a time than rows × landmarks, on average fewer than three for each such pair."""
    X = rng.standard_normal((900, 3))
    pairs = []
    matrix = KernelSpec.matrix

    def counting(kernel, A, B=None):
        pairs.append(A.shape[0] * (A if B is None else B).shape[0])
        return matrix(kernel, A, B)

    monkeypatch.setattr(KernelSpec, "matrix", counting)
    NystroemFeatures("ntk", n_components=64, random_state=0).fit(X)
    assert max(pairs) <= 900 * 32
    assert sum(pairs) < 3 * 900 * 64


# Landmarks of other kinds.


def test_centres_of_kmeans(rng):
    X = np.concatenate([rng.standard_normal((50, 2)) + c for c in ([0, 0], [20, 0], [0, 20])])
    features = NystroemFeatures("gaussian", n_components=3, landmarks="kmeans", random_state=0).fit(X)
    assert not hasattr(features, "landmark_indices_")
    expected = KMeans(3, n_init=5, random_state=0).fit(X).cluster_centers_
    distances = np.linalg.norm(features.landmarks_[:, None] - expected[None], axis=2)
    assert (distances.min(axis=0) < 15).all()
    spread = unbalanced(600)
    means = NystroemFeatures("gaussian", n_components=50, landmarks="kmeans", random_state=0).fit(spread)
    uniform = NystroemFeatures("gaussian", n_components=50, landmarks="uniform", random_state=0).fit(spread)
    assert means.estimate_error(spread) < uniform.estimate_error(spread)


def test_centres_come_from_some_rows_only(monkeypatch, rng):
    monkeypatch.setattr(_landmarks, "_ROWS_PER_CENTRE", 2)
    X = rng.standard_normal((100, 2))
    assert NystroemFeatures("gaussian", n_components=7, landmarks="kmeans", random_state=0).fit(X).landmarks_.shape == (
        7,
        2,
    )


def test_centres_on_a_device(monkeypatch, rng):
    """Run on the CPU, as if tensors were not in host memory."""
    import torch

    X = np.concatenate([rng.standard_normal((50, 2)) + c for c in ([0, 0], [40, 0], [0, 40])])
    monkeypatch.setattr(_landmarks._array, "host_view", lambda _: None)
    for rows in (X, X.reshape(150, 1, 2, 1)):
        found = _landmarks.centres(torch.from_numpy(rows), 3, np.random.SeedSequence(0))
        assert found.shape == (3, *rows.shape[1:])
        found = as_numpy(found).reshape(3, 2)
        np.testing.assert_allclose(found[np.argsort(found @ [1, 2])], [[0, 0], [40, 0], [0, 40]], atol=1)


def test_given_landmarks(rng):
    import torch

    X, L = rng.standard_normal((20, 3)), rng.standard_normal((6, 3))
    L[1] = L[0]  # equal ones do no harm
    expected = (
        gaussian(X, L, lengthscale=1.0) @ np.linalg.pinv(gaussian(L, lengthscale=1.0)) @ gaussian(L, X, lengthscale=1.0)
    )
    for given in (L, L.tolist(), sp.csr_array(L), torch.from_numpy(L)):
        for rows in (X, sp.csr_array(X), torch.from_numpy(X)):
            features = NystroemFeatures("gaussian", landmarks=given, lengthscale=1.0).fit(rows)
            assert features.transform(X).shape == (20, 6)
            np.testing.assert_allclose(gram_of(features, X), expected, atol=1e-12)
            assert not hasattr(features, "landmark_indices_")
    whole = NystroemFeatures("ntk", landmarks=np.eye(3, dtype=int)).fit(X)
    assert whole.landmarks_.dtype == np.float64
    L.setflags(write=False)
    own = NystroemFeatures("ntk", landmarks=L).fit(X)
    assert not np.may_share_memory(own.landmarks_, L)
    own.transform(torch.from_numpy(X))


# Kernel matrices.


def test_precomputed(rng):
    import torch

    X, Y = rng.standard_normal((50, 3)), rng.standard_normal((7, 3))
    K, cross = ntk(X, depth=1), ntk(Y, X, depth=1)
    for landmarks in ("leverage", "uniform"):
        rows = NystroemFeatures("ntk", n_components=12, landmarks=landmarks, random_state=0).fit(X)
        for like in (np.asarray, torch.from_numpy):
            matrix = NystroemFeatures("precomputed", n_components=12, landmarks=landmarks, random_state=0).fit(like(K))
            np.testing.assert_array_equal(matrix.landmark_indices_, rows.landmark_indices_)
            assert matrix.n_features_in_ == 50
            np.testing.assert_allclose(as_numpy(matrix.transform(like(cross))), rows.transform(Y), atol=1e-9)
            np.testing.assert_allclose(
                as_numpy(matrix.set_params(batch_size=3).transform(like(K))), rows.transform(X), atol=1e-9
            )
    assert get_tags(NystroemFeatures("precomputed")).input_tags.pairwise
    assert not get_tags(NystroemFeatures()).input_tags.pairwise
    theirs = Nystroem(kernel="precomputed", n_components=50).fit(K)
    np.testing.assert_allclose(
        theirs.transform(K) @ theirs.transform(K).T, gram_of(NystroemFeatures("precomputed").fit(K), K), atol=1e-8
    )
    with pytest.raises(ValueError, match=r"not known to NystroemFeatures\(kernel='precomputed'\)"):
        matrix.estimate_error(K)


def test_bad_kernel_matrices(rng):
    K = gaussian(rng.standard_normal((6, 2)))
    with pytest.raises(ValueError, match=r"'X' parameter of NystroemFeatures must be a square kernel matrix"):
        NystroemFeatures("precomputed").fit(K[:4])
    with pytest.raises(TypeError, match=r"'X' parameter of NystroemFeatures must be dense"):
        NystroemFeatures("precomputed").fit(sp.csr_array(K))
    with pytest.raises(ValueError, match="X has 5 features, but NystroemFeatures is expecting 6 features"):
        NystroemFeatures("precomputed").fit(K).transform(K[:, :5])
    for landmarks in ("kmeans", K):
        with pytest.raises(ValueError, match=r"'landmarks' parameter of .* must be 'leverage' or 'uniform' for kernel"):
            NystroemFeatures("precomputed", landmarks=landmarks).fit(K)
    with pytest.raises(ValueError, match=r"'kernel_params' parameter of .* must be None for kernel='precomputed'"):
        NystroemFeatures("precomputed", kernel_params={"a": 1}).fit(K)


# Length scales.


def test_scale_equals_fourier_features(rng):
    from ntkit import RandomFourierFeatures

    X = 3 * rng.standard_normal((50, 6)) + 2
    for kernel in ("gaussian", "exponential"):
        features = NystroemFeatures(kernel, n_components=8, random_state=0).fit(X / 10)
        assert features.lengthscale_ == RandomFourierFeatures(n_components=2).fit(X / 10).lengthscale_
        K = gram(kernel, X / 10, lengthscale=features.lengthscale_)
        np.testing.assert_array_equal(features.exact_kernel(X / 10), K)
    assert NystroemFeatures("gaussian", lengthscale=3).fit(X).lengthscale_ == 3.0
    again = features.set_params(kernel="ntk").fit(X)
    assert not hasattr(again, "lengthscale_")


# Array libraries, types, batches.


def test_float32_stays_float32(rng):
    import torch

    for landmarks in KINDS:
        X = rng.standard_normal((80, 5)).astype(np.float32)
        features = NystroemFeatures("ntk", n_components=20, landmarks=landmarks, random_state=0).fit(X)
        assert features.landmarks_.dtype == np.float32
        assert features.normalization_.dtype == np.float64
        Z = features.transform(X.astype(np.float64))
        assert Z.dtype == np.float64
        for rows in (X, sp.csr_array(X), torch.from_numpy(X)):
            out = features.transform(rows)
            assert "float32" in str(out.dtype)
            np.testing.assert_allclose(as_numpy(out), Z, atol=1e-4)
        if landmarks != "kmeans":
            np.testing.assert_array_equal(
                features.landmark_indices_, clone(features).fit(X.astype(np.float64)).landmark_indices_
            )


def test_float32_rows_of_a_map_fitted_on_float64(rng):
    """Landmarks in float64 give kernel values in float64, so an ill-conditioned smooth kernel keeps its accuracy."""
    X = rng.uniform(-1, 1, (200, 2))
    features = NystroemFeatures("gaussian", n_components=150, lengthscale=2.0, random_state=0).fit(X)
    single = X.astype(np.float32)
    K = gaussian(single.astype(np.float64), lengthscale=2.0)
    Z = features.transform(single)
    assert Z.dtype == np.float32
    np.testing.assert_allclose(np.float64(Z) @ np.float64(Z).T, K, atol=1e-5)
    own = clone(features).fit(single).transform(single)
    np.testing.assert_allclose(np.float64(own) @ np.float64(own).T, K, atol=1e-4)


def test_rounded_kernels_of_high_condition(rng):
    """Of 150 eigenvalues some 40 are more than the rounding errors of float32: noise must not be inverted."""
    import torch

    X = rng.uniform(-1, 1, (200, 2))
    K = gaussian(X, lengthscale=2.0)
    matrix = NystroemFeatures("precomputed", n_components=150, random_state=0).fit(K.astype(np.float32))
    assert matrix.landmarks_.dtype == np.float32
    np.testing.assert_allclose(gram_of(matrix, K.astype(np.float32)), K, atol=1e-4)
    rows = torch.from_numpy(X).bfloat16()
    features = NystroemFeatures("gaussian", n_components=150, lengthscale=2.0, random_state=0).fit(rows)
    single = rows.float()
    exact = gaussian(as_numpy(rows.double()), lengthscale=2.0)
    np.testing.assert_allclose(gram_of(features, single), exact, atol=1e-4)


def test_torch(rng):
    import torch

    X = rng.standard_normal((30, 4))
    for landmarks in KINDS:
        features = NystroemFeatures("ntk", n_components=9, landmarks=landmarks, random_state=0).fit(torch.from_numpy(X))
        assert isinstance(features.landmarks_, np.ndarray)
        Z = features.transform(X)
        for dtype, error in (("float64", 1e-10), ("float32", 1e-4), ("float16", 1e-1), ("bfloat16", 1)):
            rows = torch.from_numpy(X).to(getattr(torch, dtype))
            out = features.transform(rows)
            assert out.dtype == rows.dtype
            np.testing.assert_allclose(as_numpy(out.double()), Z, atol=error)
            own = clone(features).fit(rows)
            assert own.landmarks_.dtype == (np.float64 if dtype == "float64" else np.float32)
            assert np.isfinite(own.transform(X)).all()
    whole = torch.arange(12).reshape(3, 4)
    assert features.transform(whole).dtype == torch.float64
    assert clone(features).fit(whole).landmarks_.dtype == np.float64
    tracked = torch.from_numpy(X).requires_grad_()
    features.fit(tracked)  # which takes them as constants
    for rows in (tracked, tracked.float(), tracked[1:]):
        assert features.transform(rows).requires_grad
    with torch.no_grad():
        assert not features.transform(tracked).requires_grad
    np.testing.assert_allclose(as_numpy(features.transform(tracked.detach())), features.transform(X), atol=1e-10)


def test_functions_get_tensors(rng):
    import torch

    def kernel(A, B):
        assert isinstance(A, torch.Tensor)
        return torch.exp(-torch.cdist(A, B))

    X = torch.from_numpy(rng.standard_normal((40, 3)))
    for landmarks in ("leverage", "uniform"):
        features = NystroemFeatures(kernel, n_components=30, landmarks=landmarks, random_state=0).fit(X)
        K = as_numpy(kernel(X, X))
        np.testing.assert_allclose(gram_of(features, X), nystroem_kernel(K, features.landmark_indices_), atol=1e-10)
        np.testing.assert_array_equal(as_numpy(features.exact_kernel(X)), K)


@gpu
def test_cuda():
    import torch

    X = unbalanced(3000)
    for kernel in ("gaussian", "ntk"):
        for landmarks in KINDS:
            features = NystroemFeatures(kernel, n_components=100, landmarks=landmarks, random_state=0).fit(X)
            device = clone(features).fit(torch.from_numpy(X).cuda())
            if landmarks != "kmeans":  # whose draws are others on a device
                np.testing.assert_array_equal(features.landmark_indices_, device.landmark_indices_)
                # Rounding ε of kernel values is ε/√(mε) in features along the smallest eigenvalue kept, mε.
                np.testing.assert_allclose(gram_of(device, X), gram_of(features, X), atol=1e-6)
            for dtype, error in ((torch.float64, 1e-6), (torch.float32, 1e-3)):
                rows = torch.from_numpy(X).to("cuda", dtype)
                for batch_size in (None, 77):
                    out = features.set_params(batch_size=batch_size).transform(rows)
                    assert out.device == rows.device
                    assert out.dtype == dtype
                    np.testing.assert_allclose(as_numpy(out.double()), features.transform(X), atol=error)
            assert device.estimate_error(torch.from_numpy(X).cuda(), random_state=0) == pytest.approx(
                device.estimate_error(X, random_state=0), rel=1e-3
            )


# Images.


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_images(library, rng):
    import torch

    for kind in ["uint8", "float32", "float64"]:
        X = rng.integers(1, 9, size=(25, 3, 4, 2)).astype(kind)
        images = X if library == "numpy" else torch.from_numpy(X)
        for kernel, exact in (("cntk", lambda X: cntk(X, depth=2)), (CONV, lambda X: network_kernel(CONV, X))):
            for landmarks in KINDS:
                features = NystroemFeatures(kernel, n_components=20, depth=2, landmarks=landmarks, random_state=0).fit(
                    images
                )
                assert features.landmarks_.shape == (20, 3, 4, 2)
                assert (features.image_shape_, features.n_features_in_) == ((3, 4, 2), 24)
                Z = features.transform(images)
                assert ("float64" in str(Z.dtype)) == (kind == "float64")
                K = exact(X.astype(np.float64))
                assert np.linalg.norm(gram_of(features, images) - K) < 0.2 * np.linalg.norm(K)
                if landmarks != "kmeans":
                    chosen = features.landmark_indices_
                    np.testing.assert_allclose(
                        gram_of(features, images)[np.ix_(chosen, chosen)], K[np.ix_(chosen, chosen)], rtol=1e-3
                    )
                np.testing.assert_allclose(as_numpy(features.transform(images.reshape(25, 24))), as_numpy(Z), rtol=1e-6)
        with pytest.raises(
            ValueError, match=r"images of shape \(4, 3, 2\), but .* expecting images of shape \(3, 4, 2\)"
        ):
            features.transform(images.reshape(25, 4, 3, 2))


def test_few_and_constant_images():
    for shape in [(1, 4, 4, 1), (3, 1, 1, 1), (3, 3, 3, 1)]:
        for X in (np.zeros(shape), np.ones(shape)):
            features = NystroemFeatures("cntk", n_components=2, depth=2, random_state=0).fit(X)
            np.testing.assert_allclose(gram_of(features, X), cntk(X, depth=2), atol=1e-12)


def test_images_and_rows_are_not_mixed_up(rng):
    images, rows = rng.standard_normal((5, 2, 2, 1)), rng.standard_normal((5, 4))
    features = NystroemFeatures("gaussian", n_components=3, random_state=0).fit(rows)
    with pytest.raises(ValueError, match="must be 2-D"):
        features.transform(images)
    with pytest.raises(ValueError, match=r"2-D \(n_samples, n_features\)"):
        NystroemFeatures("gaussian", n_components=3, lengthscale=1.0).fit(images)
    again = (
        NystroemFeatures("cntk", n_components=3, depth=2, random_state=0).fit(images).set_params(kernel="ntk").fit(rows)
    )
    assert not hasattr(again, "image_shape_")


# Dask.


def test_dask(rng):
    da = pytest.importorskip("dask.array")

    X = rng.standard_normal((90, 4))
    rows = da.from_array(X, chunks=(40, -1))
    features = NystroemFeatures("ntk", n_components=10, random_state=0).fit(rows)
    np.testing.assert_array_equal(
        features.landmark_indices_, clone(features).fit(X[:40]).landmark_indices_
    )  # of the first block
    Z = features.transform(rows)
    assert Z.chunks == ((40, 40, 10), (10,))
    np.testing.assert_allclose(Z.compute(), features.transform(X), atol=1e-10)


# Fits, copies, draws again.


def test_rows_are_not_modified(rng):
    X = rng.standard_normal((30, 3))
    kept = X.copy()
    X.setflags(write=False)
    for landmarks in KINDS:
        features = NystroemFeatures("ntk", n_components=6, landmarks=landmarks, random_state=0).fit(X)
        features.transform(X)
        np.testing.assert_array_equal(X, kept)
        assert not np.may_share_memory(features.landmarks_, X)


# Errors.


def test_bad_combinations(rng):
    X = rng.standard_normal((5, 3))
    with pytest.raises(TypeError, match="kernel 'polynomial' takes the parameters degree, coef0, gamma"):
        NystroemFeatures("polynomial", kernel_params={"power": 2}).fit(X)
    with pytest.raises(
        ValueError, match=r"'kernel_params' .* must be a dict without 'depth', which is a separate parameter"
    ):
        NystroemFeatures("ntk", kernel_params={"depth": 2}).fit(X)
    with pytest.raises(ValueError, match=r"'landmarks' parameter of .* for sparse rows.* Got 'kmeans' instead"):
        NystroemFeatures(landmarks="kmeans").fit(sp.csr_array(X))
    for wrong in (X[:, :2], X[None]):
        with pytest.raises(ValueError, match=r"'landmarks' parameter of NystroemFeatures must be"):
            NystroemFeatures(landmarks=wrong).fit(X)
    with pytest.raises(ValueError, match=r"'landmarks' parameter of NystroemFeatures must be finite"):
        NystroemFeatures(landmarks=np.nan * X).fit(X)


# In use.


def test_models_take_the_map(rng):
    X = rng.uniform(-2, 2, (400, 3))
    y = np.sin(X[:, 0]) * X[:, 1]
    features = NystroemFeatures("gaussian", n_components=100, random_state=0)
    assert FeatureRidge(features, random_state=0).fit(X[:300], y[:300]).score(X[300:], y[300:]) > 0.99
    frozen = FrozenEstimator(features.fit(X[:300]))
    assert FeatureRidge(frozen, random_state=0).fit(X[:300], y[:300]).score(X[300:], y[300:]) > 0.99


def test_spectral_errors_fall_fast(rng):
    """Where random features have errors ∝ m^{-1/2}: for a smooth kernel in two dimensions they vanish."""
    X = rng.uniform(-1, 1, (300, 2))
    K = gaussian(X, lengthscale=1.0)
    errors = []
    for m in (10, 60):
        features = NystroemFeatures("gaussian", n_components=m, lengthscale=1.0, random_state=0).fit(X)
        errors.append(spectral_error(K, features.transform(X), 1e-3))
    assert errors[1] < 0.05 * errors[0]
    fresh = rng.uniform(-1, 1, (100, 2))
    assert features.estimate_error(fresh) < 1e-4
    np.testing.assert_allclose(gram_of(features, fresh), rbf_kernel(fresh, gamma=0.5), atol=1e-3)
