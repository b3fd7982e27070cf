"""Displays: drawn values equal a naive computation; axes, styles and errors follow scikit-learn."""

from __future__ import annotations

import builtins

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from sklearn.exceptions import NotFittedError
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import ntkit
from ntkit import (
    FeatureRidge,
    FeatureRidgeClassifier,
    FeatureRidgeSearch,
    GegenbauerFeatures,
    GradientFeatures,
    GramRidge,
    KernelRidge,
    KernelRidgeClassifier,
    NTKFeatures,
    NTKPolynomialSketch,
    NTKRandomFeatures,
    NystroemFeatures,
)
from ntkit.diagnostics import spectral_error
from ntkit.display import ErrorCurveDisplay, KernelApproximationDisplay, RidgePathDisplay, plot_relu_ntk
from ntkit.kernels import gaussian, ntk


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.fixture
def X(rng):
    return rng.standard_normal((60, 6))


@pytest.fixture
def features(X):
    return NTKFeatures(depth=2, n_components=128, random_state=0).fit(X)


def relative(K, Z):
    return np.sqrt(((Z @ Z.T - K) ** 2).sum() / (K**2).sum())


# Kernel values


def test_scatter_shows_the_kernel_values(X, features):
    display = KernelApproximationDisplay.from_estimator(features, X)
    K, Z = ntk(X, depth=2), features.transform(X)
    points = np.asarray(display.scatter_.get_offsets())
    pairs = [(K[i, j], Z[i] @ Z[j]) for i in range(60) for j in range(i, 60)]
    np.testing.assert_allclose(points, pairs, rtol=1e-10, atol=1e-10)
    assert display.relative_error == pytest.approx(relative(K, Z))
    (text,) = (t.get_text() for t in display.ax_.get_legend().get_texts())
    assert text == f"NTKFeatures, relative error {relative(K, Z):.3g}"
    x, y = display.diagonal_.get_data()
    np.testing.assert_array_equal(x, y)
    assert min(x) <= points.min()
    assert max(x) >= points.max()
    assert display.figure_ is display.ax_.figure


def test_matrices_and_their_difference_are_drawn(X, features):
    display = KernelApproximationDisplay.from_estimator(features, X, kind="matrix", interpolation="nearest")
    K, Z = ntk(X, depth=2), features.transform(X)
    for image, matrix in zip(display.images_, (K, Z @ Z.T, Z @ Z.T - K), strict=True):
        np.testing.assert_allclose(image.get_array(), matrix, rtol=1e-10, atol=1e-10)
        assert image.get_interpolation() == "nearest"
    both = np.stack([K, Z @ Z.T])
    for image in display.images_[:2]:
        assert image.get_clim() == pytest.approx((both.min(), both.max()))
    low, high = display.images_[2].get_clim()
    assert low == -high
    assert [ax.get_title() for ax in display.ax_] == ["Exact kernel", "Features", "Difference"]


def test_spectrum_shows_the_eigenvalues(X):
    few = NTKFeatures(depth=2, n_components=20, random_state=0).fit(X)
    display = KernelApproximationDisplay.from_estimator(few, X, kind="spectrum", linewidth=3, name="few")
    K, Z = ntk(X, depth=2), few.transform(X)
    ranks, values = display.lines_[0].get_data()
    np.testing.assert_allclose(values, np.linalg.eigvalsh(K)[::-1], rtol=1e-8)
    np.testing.assert_array_equal(ranks, np.arange(1, 61))
    values = display.lines_[1].get_ydata()
    np.testing.assert_allclose(values, np.linalg.svd(Z, compute_uv=False) ** 2, rtol=1e-6)  # 20 of 60 are not zero
    assert display.lines_[1].get_linewidth() == 3
    assert display.lines_[1].get_label().startswith("few, relative error")


def test_styles_match_the_features(X, features):
    make = KernelApproximationDisplay.from_estimator
    exact, approximate = make(features, X, kind="spectrum", label="q", color="red").lines_
    assert (exact.get_label(), exact.get_color()) == ("exact kernel", "black")
    assert (approximate.get_label(), approximate.get_color()) == ("q", "red")
    display = make(features, X, kind="matrix", vmin=0, vmax=5, cmap="magma")
    assert [image.get_clim() for image in display.images_[:2]] == [(0, 5)] * 2
    assert [image.get_cmap().name for image in display.images_] == ["magma", "magma", "RdBu_r"]
    assert display.images_[2].get_clim()[1] == np.abs(display.approximate - display.exact).max()


def test_sample_equals_estimate_error(X, features):
    display = KernelApproximationDisplay.from_estimator(features, X, n_samples=25, random_state=3)
    assert display.exact.shape == (25, 25)
    assert display.relative_error == pytest.approx(features.estimate_error(X, n_samples=25, random_state=3))


def test_axes_are_reused_and_arguments_reach_matplotlib(X, features):
    figure, ax = plt.subplots()
    display = KernelApproximationDisplay.from_estimator(features, X, ax=ax, name="mine", color="red", s=11)
    assert display.ax_ is ax
    assert display.figure_ is figure
    assert display.scatter_.get_sizes() == [11]
    np.testing.assert_allclose(display.scatter_.get_facecolor()[0, :3], [1, 0, 0])
    assert ax.get_legend().get_texts()[0].get_text().startswith("mine, ")
    axes = plt.subplots(1, 3)[1]
    assert list(display.plot(axes, kind="matrix").ax_) == list(axes)
    assert len(plt.get_fignums()) == 2  # none was made besides
    assert display.plot(name="again").ax_ is not ax
    assert display.ax_.get_legend().get_texts()[0].get_text().startswith("again, ")


def test_other_maps_need_a_kernel(X):
    rbf = RBFSampler(gamma=0.5, n_components=64, random_state=0).fit(X)
    with pytest.raises(
        TypeError, match=r"'kernel' parameter of KernelApproximationDisplay.* must be given .* RBFSampler"
    ):
        KernelApproximationDisplay.from_estimator(rbf, X)
    display = KernelApproximationDisplay.from_estimator(rbf, X, kernel="gaussian", kernel_params={"lengthscale": 1.0})
    np.testing.assert_allclose(display.exact, gaussian(X, lengthscale=1.0))


def test_matrices_may_be_given(X, features):
    K, Z = ntk(X, depth=2), features.transform(X)
    display = KernelApproximationDisplay.from_matrices(K, Z)
    assert display.relative_error == pytest.approx(relative(K, Z))
    assert display.ax_.get_legend().get_texts()[0].get_text().startswith("features, ")
    assert KernelApproximationDisplay.from_matrices(np.zeros((2, 2)), np.zeros((2, 1))).relative_error == 0
    with pytest.raises(ValueError, match=r"'Z' parameter of .*from_matrices must be an array of 60 rows"):
        KernelApproximationDisplay.from_matrices(K, Z[:5])
    with pytest.raises(ValueError, match=r"'K' parameter of .*from_matrices must be a square matrix"):
        KernelApproximationDisplay.from_matrices(K[:5], Z[:5])
    Z[3, 2] = np.nan
    with pytest.raises(ValueError, match=r"'Z' parameter of .*from_matrices must be finite. Got nan at index \(3, 2\)"):
        KernelApproximationDisplay.from_matrices(K, Z)


@pytest.mark.parametrize("kind", ["scatter", "matrix", "spectrum"])
def test_torch_rows_give_the_same_picture(X, features, kind):
    torch = pytest.importorskip("torch")
    display = KernelApproximationDisplay.from_estimator(features, torch.from_numpy(X), kind=kind)
    ours = KernelApproximationDisplay.from_estimator(features, X, kind=kind)
    np.testing.assert_allclose(display.exact, ours.exact, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(display.approximate, ours.approximate, rtol=1e-10, atol=1e-10)


def test_bad_arguments_of_kernel_values(X, features):
    make = KernelApproximationDisplay.from_estimator
    with pytest.raises(NotFittedError):
        make(NTKFeatures(), X)
    with pytest.raises(ValueError, match=r"'kind' parameter of .* must be one of 'scatter', 'matrix', 'spectrum'"):
        make(features, X, kind="bars")
    with pytest.raises(ValueError, match=r"'ax' parameter of .* must be three matplotlib Axes"):
        make(features, X, kind="matrix", ax=plt.subplots()[1])
    with pytest.raises(ValueError, match=r"'n_samples' parameter of .* must be an int ≥ 1"):
        make(features, X, n_samples=0)
    with pytest.raises(TypeError, match=r"got kernel parameters \['depth'\], but no kernel"):
        make(features, X, kernel_params={"depth": 2})
    X[0, 0] = np.nan
    with pytest.raises(ValueError, match=r"NaN|finite"):
        make(features, X)


# Error curves


def test_curves_are_means_of_errors_over_seeds(X):
    maps = {"polynomial": NTKPolynomialSketch(depth=2, degree=16), "random": NTKRandomFeatures(depth=2)}
    display = ErrorCurveDisplay.from_estimators(maps, X, n_components=(32, 64, 128), n_repeats=4, random_state=0)
    assert [line.get_label() for line in display.lines_] == list(maps)
    for line, label in zip(display.lines_, maps, strict=True):
        np.testing.assert_array_equal(line.get_xdata(), [32, 64, 128])
        errors = display.errors[label]
        assert errors.shape == (3, 4)
        assert len(np.unique(errors)) == 12  # seeds differ
        np.testing.assert_allclose(line.get_ydata(), errors.mean(axis=1))
        assert (display.seconds[label] > 0).all()
    band = display.fill_between_[0].get_paths()[0].vertices
    assert band[:, 1].min() == pytest.approx(display.errors["polynomial"].min())
    assert band[:, 1].max() == pytest.approx(display.errors["polynomial"].max())
    assert (display.ax_.get_xscale(), display.ax_.get_yscale()) == ("log", "log")
    assert display.ax_.get_ylabel() == "Relative error"


@pytest.mark.parametrize("metric", ["relative", "spectral", lambda K, Z: np.abs(Z @ Z.T - K).max()])
def test_errors_equal_a_naive_loop(X, metric):
    """The seeds are internal; Nyström features with all rows as landmarks have the same value for any seed."""
    maps = [NystroemFeatures("ntk", depth=2, landmarks=X[:10])]
    display = ErrorCurveDisplay.from_estimators(maps, X, n_components=(10,), n_repeats=2, metric=metric)
    K = ntk(X, depth=2)
    Z = maps[0].set_params(n_components=10).fit(X).transform(X)
    naive = {"relative": relative(K, Z), "spectral": spectral_error(K, Z, np.trace(K) / 60)}
    expected = naive[metric] if isinstance(metric, str) else metric(K, Z)
    np.testing.assert_allclose(display.errors["NystroemFeatures"], expected, rtol=1e-8)
    assert display.ax_.get_ylabel() == {"relative": "Relative error", "spectral": "Spectral error"}.get(metric, "Error")


def test_reference_falls_with_the_root():
    values = {"a": [0.1, 0.4], "b": [[0.2, 0.4], [0.05, 0.15]], "c": [8.0, 1.0]}
    sizes = {"a": [400, 100], "b": [100, 400], "c": [25, 400]}
    display = ErrorCurveDisplay.from_values(sizes, values)
    x, y = display.reference_.get_data()
    np.testing.assert_allclose(x, [25, 400])
    np.testing.assert_allclose(y, [0.8, 0.2])  # through 0.4 at 100, between 0.3 at 100 and 8 at 25
    assert display.plot(reference=False).reference_ is None


def test_seconds_on_the_axis(X):
    display = ErrorCurveDisplay.from_estimators(
        [NTKPolynomialSketch()], X, n_components=(32, 64), x="seconds", n_repeats=2, random_state=0
    )
    np.testing.assert_allclose(display.lines_[0].get_xdata(), np.median(display.seconds["NTKPolynomialSketch"], axis=1))
    assert display.reference_ is None
    assert display.ax_.get_xlabel() == "Seconds"
    given = ErrorCurveDisplay.from_values([1, 2], {"a": [0.4, 0.1]}, seconds={"a": [[1, 2, 9], [5, 6, 7]]}, x="seconds")
    np.testing.assert_allclose(given.lines_[0].get_xdata(), [2, 6])


def test_errors_are_drawn_at_the_numbers_of_features_that_there_are(X):
    low = X[:, :3]
    maps = {"harmonics": GegenbauerFeatures("ntk"), "gradients": GradientFeatures(width=4)}
    display = ErrorCurveDisplay.from_estimators(maps, low, n_components=(50,), n_repeats=1, random_state=0)
    counts = [maps["harmonics"].set_params(n_components=50).fit_transform(low).shape[1],
              GradientFeatures(n_components=50).fit_transform(low).shape[1]]  # fmt: skip
    assert [line.get_xdata()[0] for line in display.lines_] == counts
    assert max(counts) <= 50


def test_curves_of_other_maps_torch_rows_axes_and_styles(X):
    torch = pytest.importorskip("torch")
    ax = plt.subplots()[1]
    maps = {"rbf": RBFSampler(gamma=0.5)}
    kernel = {"kernel": "gaussian", "kernel_params": {"lengthscale": 1.0}}
    display = ErrorCurveDisplay.from_estimators(
        maps, X, n_components=(32, 64), n_samples=30, random_state=0, ax=ax, **kernel,
        line_kw={"color": "red", "linestyle": ":"}, fill_between_kw={"alpha": 0.7},
    )  # fmt: skip
    assert display.ax_ is ax
    assert display.lines_[0].get_linestyle() == ":"
    assert display.fill_between_[0].get_alpha() == 0.7
    ntks = [NTKPolynomialSketch()]
    ours, theirs = (
        ErrorCurveDisplay.from_estimators(ntks, rows, n_components=(32,), random_state=1).errors["NTKPolynomialSketch"]
        for rows in (X, torch.from_numpy(X))
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-8)


def test_progress_is_shown_on_demand(X, capsys):
    options = {"n_components": (16,), "n_repeats": 1}
    ErrorCurveDisplay.from_estimators([NTKPolynomialSketch()], X, **options)
    assert not capsys.readouterr().err
    ErrorCurveDisplay.from_estimators([NTKPolynomialSketch()], X, progress=True, **options)
    assert "ErrorCurveDisplay: 100%" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("maps", "options", "text"),
    [
        ({}, {}, "'feature_maps' parameter of .* must be a non-empty dict"),
        (NTKFeatures(), {}, "'feature_maps' parameter of .* must be a non-empty dict"),
        ([NTKFeatures(), NTKFeatures(depth=2)], {}, "must be a dict if two maps are of the same class"),
        ([StandardScaler()], {}, "must be maps with the parameters n_components and random_state"),
        ([NTKFeatures()], {"n_components": ()}, "'n_components' parameter of .* must be a non-empty sequence"),
        ([NTKFeatures()], {"n_components": 128}, "'n_components' parameter of .* must be a non-empty sequence"),
        ([NTKFeatures()], {"n_components": (0,)}, "'n_components' parameter of .* must be an int ≥ 1"),
        ([NTKFeatures()], {"n_repeats": 0}, "'n_repeats' parameter"),
        ([NTKFeatures()], {"metric": "worst"}, "'metric' parameter of .* must be one of 'relative', 'spectral'"),
        ([NTKFeatures()], {"x": "metres"}, "'x' parameter of .* must be one of 'n_components', 'seconds'"),
        ([RBFSampler()], {"n_components": (8,)}, "'kernel' parameter of .* must be given"),
        (
            {"mine": NTKRandomFeatures()},
            {"n_components": (8,), "metric": lambda *_: np.nan},
            "'metric' parameter of .* must be an error that is finite and ≥ 0. Got nan .* for 'mine' with 8 features",
        ),
        ([NTKFeatures()], {"n_components": (8,), "metric": lambda *_: -1}, "'metric' parameter of .* Got -1.0"),
    ],
)
def test_bad_arguments_of_curves(X, maps, options, text):
    with pytest.raises((ValueError, TypeError), match=text):
        ErrorCurveDisplay.from_estimators(maps, X, **options)


@pytest.mark.parametrize(
    ("sizes", "errors", "options", "text"),
    [
        ([1, 2], {}, {}, "'errors' parameter of .* must be a non-empty dict"),
        ([1, 2], {"a": [0.1, np.nan]}, {}, "'errors' parameter of .* must be arrays of shape .* of finite numbers ≥ 0"),
        ([1, 2], {"a": "much"}, {}, "'errors' parameter"),
        ([1, 2, 3], {"a": [0.1, 0.2]}, {}, r"'n_components' parameter of .* must be an array of shape \(2,\)"),
        ({"b": [1, 2]}, {"a": [0.1, 0.2]}, {}, "'n_components' parameter of .* must be a dict with a value for 'a'"),
        ([1, 2], {"a": [0.1, 0.2]}, {"seconds": {"a": [1.0]}}, "'seconds' parameter of .* must be given for 2 sizes"),
        (
            [1, 2],
            {"a": [0.1, 0.2]},
            {"x": "seconds"},
            "'x' parameter of .* must be 'n_components' for a display without",
        ),
    ],
)
def test_bad_values_of_curves(sizes, errors, options, text):
    with pytest.raises((ValueError, TypeError), match=text):
        ErrorCurveDisplay.from_values(sizes, errors, **options)


# Ridge paths


@pytest.fixture
def y(X, rng):
    return np.sin(X[:, 0]) + 0.3 * rng.standard_normal(60)


ALPHAS = np.array([1e-3, 1e-1, 1e1])


@pytest.mark.parametrize(
    "make",
    [
        lambda: FeatureRidge(NTKFeatures(n_components=32, random_state=0), alphas=ALPHAS, random_state=0),
        lambda: KernelRidge("ntk", alphas=ALPHAS),
        lambda: GramRidge(NTKFeatures(n_components=32), n_draws=2, alphas=ALPHAS, random_state=0),
    ],
)
def test_path_of_a_model(X, y, make):
    model = make().fit(X, y)
    display = RidgePathDisplay.from_estimator(model)
    tried = np.isfinite(model.errors_)
    np.testing.assert_array_equal(display.line_.get_xdata(), model.alphas_[tried])
    np.testing.assert_array_equal(display.line_.get_ydata(), model.errors_[tried])
    assert list(display.chosen_.get_xdata()) == [model.alpha_] * 2
    assert display.line_.get_label() == type(model).__name__
    assert display.ax_.get_ylabel() == "Squared error on held-out rows"
    assert display.ax_.get_xscale() == "log"
    assert display.degrees_ax_ is None


def test_path_of_classifiers_searches_and_pipelines(X, y):
    labels = y > 0
    features = NTKFeatures(n_components=32, random_state=0)
    display = RidgePathDisplay.from_estimator(FeatureRidgeClassifier(features, random_state=0).fit(X, labels))
    assert display.ax_.get_ylabel() == "Log loss on held-out rows"
    display = RidgePathDisplay.from_estimator(KernelRidgeClassifier("ntk", alphas=ALPHAS).fit(X, labels))
    assert display.ax_.get_ylabel() == "Log loss on held-out rows"
    pipeline = make_pipeline(StandardScaler(), KernelRidge("ntk", alphas=ALPHAS)).fit(X, y)
    assert RidgePathDisplay.from_estimator(pipeline, name="mine").line_.get_label() == "mine"
    search = FeatureRidgeSearch(n_components=32, candidates={"ntk": NTKFeatures()}, random_state=0).fit(X, y)
    np.testing.assert_array_equal(RidgePathDisplay.from_estimator(search).alphas, search.best_estimator_.alphas_)


@pytest.mark.parametrize("n_components", [16, 200])
@pytest.mark.parametrize("intercept", [True, False])
def test_degrees_of_freedom_are_the_trace_of_the_hat_matrix(X, y, n_components, intercept):
    features = NTKFeatures(n_components=n_components, random_state=0)
    model = FeatureRidge(features, alphas=ALPHAS, fit_intercept=intercept, random_state=0).fit(X, y)
    display = RidgePathDisplay.from_estimator(model, degrees_of_freedom=True)
    Z = features.fit_transform(X)
    Z = Z - Z.mean(axis=0) if intercept else Z
    naive = [np.trace(Z @ np.linalg.inv(Z.T @ Z + a * np.eye(n_components)) @ Z.T) for a in ALPHAS]
    np.testing.assert_allclose(display.degrees_line_.get_ydata(), naive, rtol=1e-6)
    assert display.degrees_ax_.figure is display.figure_


def test_path_on_given_axes_in_given_style(X, y):
    ax = plt.subplots()[1]
    model = KernelRidge("ntk", alphas=ALPHAS).fit(X, y)
    display = RidgePathDisplay.from_estimator(model, ax=ax, color="red", marker="x")
    assert display.ax_ is ax
    assert (display.line_.get_color(), display.line_.get_marker()) == ("red", "x")
    assert display.chosen_.get_color() == "red"


def test_path_of_values():
    display = RidgePathDisplay.from_values([1.0, 0.0, 10.0], [2.0, np.nan, 1.0], degrees_of_freedom=[3, 9, 1])
    np.testing.assert_array_equal(display.line_.get_data(), [[1, 10], [2, 1]])
    np.testing.assert_array_equal(display.degrees_line_.get_data(), [[0, 1, 10], [9, 3, 1]])
    assert display.ax_.get_xscale() == "symlog"
    assert display.chosen_ is None


def test_bad_arguments_of_paths(X, y, tmp_path):
    features = NTKFeatures(n_components=32, random_state=0)
    with pytest.raises(NotFittedError):
        RidgePathDisplay.from_estimator(FeatureRidge(features))
    with pytest.raises(TypeError, match=r"'estimator' parameter of .* must be a ridge model of ntkit"):
        RidgePathDisplay.from_estimator(Ridge().fit(X, y))
    for model in (KernelRidge("ntk", alphas=1.0), FeatureRidge(features, alphas=1.0)):
        with pytest.raises(ValueError, match=r"'estimator' parameter of .* must be fitted with several α"):
            RidgePathDisplay.from_estimator(model.fit(X, y))
    model = KernelRidge("ntk", alphas=ALPHAS).fit(X, y)
    with pytest.raises(ValueError, match=r"'degrees_of_freedom' parameter of .* must be False for a model other"):
        RidgePathDisplay.from_estimator(model, degrees_of_freedom=True)
    ntkit.save(FeatureRidge(features, alphas=ALPHAS, random_state=0).fit(X, y), tmp_path / "model")
    with pytest.raises(ValueError, match="needs the statistics of the fit"):
        RidgePathDisplay.from_estimator(ntkit.load(tmp_path / "model"), degrees_of_freedom=True)


@pytest.mark.parametrize(
    ("alphas", "errors", "options", "text"),
    [
        ([-1.0], [1.0], {}, "'alphas' parameter of .* must be a 1-D array of finite numbers ≥ 0"),
        ([[1.0]], [1.0], {}, "'alphas' parameter"),
        ([], [], {}, "'alphas' parameter"),
        ([1.0, 2.0], [1.0], {}, r"'errors' parameter of .* must be an array of shape \(2,\), like alphas"),
        ([1.0], [np.nan], {}, "'errors' parameter"),
        ([1.0], [1.0], {"alpha": np.nan}, "'alpha' parameter of .* must be a finite real number ≥ 0"),
        ([1.0], [1.0], {"degrees_of_freedom": [1, 2]}, "'degrees_of_freedom' parameter"),
    ],
)
def test_bad_values_of_paths(alphas, errors, options, text):
    with pytest.raises(ValueError, match=text):
        RidgePathDisplay.from_values(alphas, errors, **options)


def test_without_matplotlib_the_error_names_the_package_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        ImportError, match=r"RidgePathDisplay.from_values needs matplotlib: pip install 'ntkit\[plot\]'"
    ):
        RidgePathDisplay.from_values([1.0], [1.0])
    with pytest.raises(ImportError, match=r"plot_relu_ntk needs matplotlib: pip install 'ntkit\[plot\]'"):
        plot_relu_ntk()


def test_functions_are_drawn_on_a_figure_that_notebooks_show():
    assert plot_relu_ntk([1]).figure is plt.gcf()
