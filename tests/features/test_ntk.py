"""NTKPolynomialSketch, NTKSketch and NTKRandomFeatures: algebra, homogeneity, extreme rows. No statistics."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from tests.conftest import as_numpy
from tests.reference.features import algorithm_1, algorithm_2, drawn_layers, monomials, polynomial_sketch, unit
from tests.statistical import check_distinct
from threadpoolctl import threadpool_limits

from ntkit import NTKPolynomialSketch, NTKRandomFeatures, NTKSketch
from ntkit.features.directions import Directions
from ntkit.features.draws import ProgramDraws
from ntkit.features.network.program import emit_stages
from ntkit.features.network.stages import Activate, draw_stages
from ntkit.kernels import nngp, ntk
from ntkit.programs import Program

ACTIVATE = Program.activate
REFERENCES = {NTKPolynomialSketch: polynomial_sketch, NTKSketch: algorithm_1, NTKRandomFeatures: algorithm_2}
SMALL = {"degree": 3, "derivative_degree": 3}
PAPER = {**SMALL, "variant": "paper", "poly_components": 6, "derivative_poly_components": 5}
SIZES = {"nngp_components": 9, "ntk_components": 11, "derivative_components": 7}
SKETCHES = [
    pytest.param(SMALL, id="split"),
    pytest.param({**SMALL, **SIZES, "split": 0.4}, id="split, sizes"),
    pytest.param({**SMALL, "series": "taylor", "degree": 4, "derivative_degree": 5}, id="split, taylor"),
    pytest.param(PAPER, id="paper"),
    pytest.param({**PAPER, **SIZES}, id="paper, sizes"),
    pytest.param({**PAPER, **SIZES, "projection": True, "series": "taylor", "degree": 4}, id="paper, projection"),
]
MAPS = [
    pytest.param(NTKPolynomialSketch, {"degree": 8}, id="polynomial"),
    pytest.param(NTKSketch, {"degree": 4, "derivative_degree": 5}, id="sketch"),
    pytest.param(NTKSketch, {**PAPER, "poly_components": 64, "derivative_poly_components": 64}, id="paper"),
    pytest.param(NTKRandomFeatures, {}, id="orthogonal"),
    pytest.param(NTKRandomFeatures, {"directions": "gaussian"}, id="gaussian"),
    pytest.param(NTKRandomFeatures, {"directions": "leverage"}, id="leverage"),
]
DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])
NORMALIZE = pytest.mark.parametrize("normalize", [True, False], ids=["normalized", "plain"])


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On a busy machine threads of BLAS wait for each other: small QR decompositions then take seconds."""
    with threadpool_limits(1, user_api="blas"):
        yield


def rows(rng, n_rows=5, n_features=6):
    """Rows of different norms, one of them zero."""
    X = rng.standard_normal((n_rows, n_features)) * 10.0 ** rng.integers(-2, 3, (n_rows, 1))
    X[2] = 0
    return X


def sparse_rows(rng, n_rows=12, n_features=40, density=0.2):
    X = rng.standard_normal((n_rows, n_features)) * (rng.random((n_rows, n_features)) < density)
    X[1] = 0
    return X


def close(Z, expected, tolerance=1e-12):
    """Equal to a tolerance relative to the norm of each row."""
    Z, expected = as_numpy(Z).astype(np.float64), as_numpy(expected).astype(np.float64)
    assert Z.shape == expected.shape
    norms = np.linalg.norm(expected, axis=1, keepdims=True)
    error = np.abs(Z - expected)
    assert (error <= tolerance * norms).all(), f"relative errors up to {np.nanmax(error / (norms + 1e-300)):.2g}"


def rejected(Z, expected):
    with pytest.raises(AssertionError):
        close(Z, expected, 1e-3)


def activations(fitted):
    """Planned activations of all layers."""
    return [stage for _, stage in fitted._planned.stages if isinstance(stage, Activate)]


def redrawn(fitted, change=lambda units: units):
    """The fitted map with other draws, made of the units of all layers: for planted faults."""
    stages = draw_stages(fitted._planned.stages, fitted._seed)
    units = iter(change([stage.units for _, stage in stages if isinstance(stage, Activate)]))
    stages = [
        (path, replace(stage, units=next(units)) if isinstance(stage, Activate) else stage) for path, stage in stages
    ]
    fitted._drawn = ProgramDraws(emit_stages(stages, fitted._planned.n_features))
    return fitted


def against_reference(fitted, X):
    naive = np.array([REFERENCES[type(fitted)](fitted, x) for x in X])
    Z = fitted.transform(X)
    assert Z.dtype == np.float64
    close(Z, naive)
    close(fitted.transform(X.astype(np.float32).astype(np.float64)), fitted.transform(X.astype(np.float32)), 3e-6)
    rejected(1.05 * naive, Z)
    return naive


@NORMALIZE
@pytest.mark.parametrize("parameters", SKETCHES)
def test_sketch_is_algorithm_1(parameters, normalize, rng):
    for depth in [1, 2, 3]:
        X = rows(rng)
        fitted = NTKSketch(depth=depth, n_components=16, normalize=normalize, random_state=3, **parameters).fit(X)
        against_reference(fitted, X)


@NORMALIZE
@pytest.mark.parametrize("parameters", SKETCHES)
def test_sketch_of_sparse_rows_is_algorithm_1(parameters, normalize, rng):
    for depth in [1, 2, 3]:
        X = sparse_rows(rng, 4, 70, 0.8)  # more than four columns per component
        fitted = NTKSketch(depth=depth, n_components=16, normalize=normalize, random_state=3, **parameters)
        against_reference(fitted.fit(sp.csr_array(X)), X)


@NORMALIZE
@pytest.mark.parametrize("directions", ["gaussian", "leverage", "orthogonal", "gibbs"])
def test_random_features_are_algorithm_2(directions, normalize, rng, monkeypatch):
    for depth in [1, 2, 3]:
        for container in [np.asarray, sp.csr_array]:
            X = rows(rng)
            law = {"directions": directions}
            if directions == "gibbs":
                law = {"directions": "leverage", "sampler": "gibbs"}
            sizes = {"n_components": 24, "hidden_components": X.shape[1], "derivative_components": 16, "split": 0.5}
            fitted = NTKRandomFeatures(depth=depth, normalize=normalize, random_state=3, **sizes, **law)
            naive = against_reference(fitted.fit(container(X)), X)
            close(redrawn(fitted).transform(X), naive)
            with monkeypatch.context() as patch:  # steps in place of ReLUs
                patch.setattr(Program, "activate", lambda p, value, _, scale: ACTIVATE(p, value, "step", scale))
                rejected(redrawn(fitted).transform(X), naive)
            if depth > 1:  # one W for two layers
                rejected(redrawn(fitted, one_matrix_for_two_layers).transform(X), naive)


def one_matrix_for_two_layers(units):
    first, second, *others = units
    return [first, replace(second, slopes=first.slopes), *others]


@pytest.mark.parametrize("sizes", [{"hidden_components": 7}, {"derivative_components": 5}, {"split": 0.7}])
def test_random_features_of_given_sizes(sizes, rng):
    X = rows(rng)
    fitted = NTKRandomFeatures(depth=3, n_components=20, random_state=1, **sizes).fit(X)
    against_reference(fitted, X)
    forward = [stage.units.n_forward for stage in activations(fitted)]
    derivative = [stage.units.n_derivative for stage in activations(fitted)]
    assert forward[:2] == [sizes["hidden_components"]] * 2 if "hidden_components" in sizes else True
    assert derivative == [5] * 3 if "derivative_components" in sizes else True
    assert forward[2] == 14 if "split" in sizes else True


@NORMALIZE
@pytest.mark.parametrize("kind", ["ntk", "nngp"])
def test_polynomial_sketch_is_its_series(kind, normalize, rng):
    for n_components in [5, 40, 600]:
        for container in [np.asarray, sp.csr_array]:
            X = rows(rng)
            parameters = {"depth": 2, "degree": 5, "kind": kind, "n_components": n_components, "normalize": normalize}
            fitted = NTKPolynomialSketch(width=16, random_state=0, **parameters).fit(container(X))
            against_reference(fitted, X)
            assert fitted.transform(X).shape[1] == sum(fitted.budget_.exact.values()) + sum(
                fitted.budget_.sketched.values()
            )


def test_monomials_are_the_tensor_power(rng):
    x, y = rng.standard_normal((2, 4))
    power = np.kron(np.kron(x, x), x)
    assert monomials(x, 3) @ monomials(y, 3) == pytest.approx((x @ y) ** 3)
    assert np.linalg.norm(monomials(x, 3)) == pytest.approx(np.linalg.norm(power))


def test_a_polynomial_sketch_with_room_for_all_monomials_has_no_error(rng):
    X = rng.standard_normal((8, 3))
    fitted = NTKPolynomialSketch(depth=2, degree=4, n_components=500, random_state=0).fit(X)
    assert not fitted.budget_.sketched
    cosines = np.array([[unit(x) @ unit(y) for y in X] for x in X])
    K = np.polynomial.polynomial.polyval(cosines, fitted.coefficients_)
    K *= np.outer(*2 * [np.linalg.norm(X, axis=1)])
    Z = fitted.transform(X)
    assert Z.shape[1] < 500  # fewer features than asked for: there are no more monomials
    np.testing.assert_allclose(Z @ Z.T, K, rtol=1e-12)


def test_algorithm_1_to_the_letter_draws_all_rows_of_hadamard_matrices_with_replacement(rng):
    """64 draws from 64 rows are all distinct with probability 64!/64⁶⁴ < 1e-26."""
    X = rng.standard_normal((2, 64))
    sizes = {"n_components": 64, "nngp_components": 64, "ntk_components": 64, "poly_components": 64}
    letter = {"variant": "paper", "series": "taylor", "normalize": False, "projection": True, "replace": True}
    fitted = NTKSketch(degree=2, derivative_degree=1, random_state=0, **letter, **sizes).fit(X)
    drawn = drawn_layers(fitted)
    for operator in (drawn.first, drawn.lift, drawn.layers[0].mix):
        assert len(set(operator.rows.tolist())) < 64
    assert drawn.last.matrix.shape == (64, 64)


def test_coefficients_of_the_series(rng):
    X = rows(rng)
    taylor = NTKSketch(series="taylor", degree=4, derivative_degree=3, n_components=32).fit(X)
    # Eq. 6; the weight that truncated series lack at t = 1 goes to the highest degree.
    np.testing.assert_allclose(taylor.coefficients_[:4], [1 / np.pi, 0.5, 1 / (2 * np.pi), 0])
    np.testing.assert_allclose(taylor.derivative_coefficients_[:3], [0.5, 1 / np.pi, 0])
    fitted = NTKSketch(degree=4, derivative_degree=3, n_components=32).fit(X)
    for sketch in (taylor, fitted):
        assert sketch.coefficients_.sum() == pytest.approx(1)
        assert sketch.derivative_coefficients_.sum() == pytest.approx(1)
        assert min(sketch.coefficients_.min(), sketch.derivative_coefficients_.min()) >= 0


@pytest.mark.parametrize("kind", ["ntk", "nngp"])
def test_the_degree_of_a_polynomial_sketch_reaches_its_tolerance(kind, rng):
    X = rows(rng)
    t = np.linspace(-1, 1, 501)
    circle = np.column_stack([t, np.sqrt(1 - t**2)])
    kernel = {"ntk": ntk, "nngp": nngp}[kind]
    for depth, tol in ((1, 0.05), (2, 0.02), (3, 0.03)):
        fitted = NTKPolynomialSketch(depth=depth, tolerance=tol, kind=kind, n_components=64).fit(X)
        exact = kernel(circle, np.array([[1.0, 0.0]]), depth=depth)[:, 0]
        error = np.abs(np.polynomial.polynomial.polyval(t, fitted.coefficients_) - exact).max() / exact[-1]
        assert error <= 1.01 * fitted.fit_error_ <= 1.01 * tol
        assert len(fitted.coefficients_) == fitted.degree_ + 1
        assert fitted.coefficients_.min() >= 0
        assert fitted.coefficients_.sum() == pytest.approx(exact[-1])
        lower = NTKPolynomialSketch(depth=depth, degree=fitted.degree_ - 1, kind=kind, n_components=64).fit(X)
        assert lower.fit_error_ > tol


@pytest.mark.parametrize(("law", "parameters"), MAPS)
def test_a_sparse_fit(law, parameters, rng):
    """Sparse rows go through OSNAPs; dense ones through the same map. A dense fit takes sparse rows too."""
    for depth in [1, 2, 3]:
        X = sparse_rows(rng)
        fitted = law(depth=depth, n_components=256, random_state=0, **parameters).fit(sp.csr_array(X))
        Z = fitted.transform(sp.csr_array(X))
        close(fitted.transform(X), Z)
        close(fitted.transform(X.astype(np.float32)), Z, 3e-6)
        close(fitted.transform(sp.csr_array(X.astype(np.float32))), Z, 3e-6)
        close(fitted.transform(sp.csc_array(X)), Z)
        if law is not NTKRandomFeatures:
            np.testing.assert_allclose(np.linalg.norm(Z, axis=1), (depth + 1) ** 0.5 * np.linalg.norm(X, axis=1))
        K = ntk(X, depth=depth)
        assert np.linalg.norm(Z @ Z.T - K) < 0.6 * np.linalg.norm(K)
        dense = law(depth=depth, n_components=256, random_state=0, **parameters).fit(X)
        close(dense.transform(sp.csr_array(X)), dense.transform(X))


@pytest.mark.parametrize(("law", "parameters"), MAPS)
def test_homogeneity(law, parameters, rng):
    for depth in [1, 2, 3]:
        X = rows(rng, 6, 10)
        fitted = law(depth=depth, n_components=32, random_state=0, **parameters).fit(X)
        Z = fitted.transform(X)
        for c in (1e-8, 0.3, 7.0, 1e9):
            close(fitted.transform(c * X), c * Z)
        assert not Z[2].any()
        assert not fitted.transform(np.zeros((2, 10), dtype=np.float32)).any()
        assert not fitted.transform(sp.csr_array((3, 10))).any()
        plain = law(depth=depth, n_components=32, random_state=0, normalize=False, **parameters).fit(X)
        close(plain.transform(3 * X), 3 * plain.transform(X))
        assert not plain.transform(X)[2].any()


@pytest.mark.parametrize(("law", "parameters"), MAPS)
def test_norms_are_exact(law, parameters, rng):
    """‖Z(x)‖² = (L + 1)‖x‖², and ‖x‖² for kind="nngp"."""
    for depth in [1, 2, 3]:
        X = rows(rng, 9, 10)
        for kind, diagonal in (("ntk", depth + 1), ("nngp", 1)):
            # Of m random features all are 0 with probability 2^{-m}: keep them many.
            for n_components in (128, 333) if law is NTKRandomFeatures else (7, 64):
                fitted = law(depth=depth, n_components=n_components, kind=kind, random_state=0, **parameters)
                Z = fitted.set_params(**{"split": 0.4} if law is NTKRandomFeatures else {}).fit_transform(X)
                np.testing.assert_allclose((Z**2).sum(1), diagonal * (X**2).sum(1), rtol=1e-12)
                Z = fitted.transform(X.astype(np.float32)).astype(np.float64)
                np.testing.assert_allclose((Z**2).sum(1), diagonal * (X.astype(np.float32) ** 2).sum(1), rtol=1e-5)


@pytest.mark.parametrize(("law", "parameters"), MAPS)
def test_duplicates_and_antipodes(law, parameters, rng):
    for depth in [1, 2, 3]:
        x = rng.standard_normal(10)
        fitted = law(depth=depth, n_components=1024, random_state=0, **parameters).fit([x])
        Z = fitted.transform(np.array([x, -x, x, 2 * x]))
        np.testing.assert_array_equal(Z[0], Z[2])
        close(Z[3:], 2 * Z[:1])
        K = ntk(np.array([x, -x]), depth=depth)
        assert abs(Z[0] @ Z[1] - K[0, 1]) < 0.3 * K[0, 0]  # six standard deviations and more
        assert np.isfinite(Z).all()


@pytest.mark.parametrize(("law", "parameters"), MAPS)
def test_extreme_norms_in_float32(law, parameters, rng):
    import torch

    for library in ["numpy", "torch"]:
        for scale in [1e18, 1e-18, 1e-30, 1e30]:
            X = (scale * rng.standard_normal((5, 10))).astype(np.float32)
            X[1] = 0
            fitted = law(depth=2, n_components=32, random_state=0, **parameters).fit(X)
            Z = fitted.transform(X if library == "numpy" else torch.from_numpy(X))
            assert "float32" in str(Z.dtype)
            close(Z, fitted.transform(X.astype(np.float64)), 1e-5)


@pytest.mark.parametrize(("law", "parameters"), MAPS)
def test_extreme_norms_in_float64(law, parameters, rng):
    for scale in [1e150, 1e-150, 1e-290, 1e290]:
        X = rng.standard_normal((5, 10))
        fitted = law(depth=2, n_components=32, random_state=0, **parameters).fit(X)
        close(fitted.transform(scale * X) / scale, fitted.transform(X))


@pytest.mark.parametrize(("law", "parameters"), MAPS)
def test_few_features(law, parameters, rng):
    for n_features in [1, 2, 3]:
        X = rng.standard_normal((20, n_features))
        Z = law(depth=2, n_components=1024, random_state=0, **parameters).fit_transform(X)
        K = ntk(X, depth=2)
        assert np.linalg.norm(Z @ Z.T - K) < 0.35 * np.linalg.norm(K)
        np.testing.assert_allclose(np.diag(Z @ Z.T), np.diag(K), rtol=1e-10)


@DEPTHS
@pytest.mark.parametrize(("law", "parameters"), MAPS[1:])
def test_nngp_columns(law, parameters, depth, rng):
    X = rng.standard_normal((30, 10))
    fitted = law(depth=depth, n_components=1024, random_state=0, **parameters).fit(X)
    Z, K, T = fitted.transform(X), nngp(X, depth=depth), ntk(X, depth=depth)
    columns = fitted.nngp_columns_
    assert isinstance(columns, slice)
    if parameters.get("variant") == "paper":  # all columns are mixed
        assert Z[:, columns].shape == (30, 0)
        return
    assert 1 <= Z[:, columns].shape[1] < 1024
    assert columns.stop == 1024
    A = Z[:, columns] @ Z[:, columns].T
    assert np.linalg.norm(A - K) < 0.25 * np.linalg.norm(K)
    np.testing.assert_allclose(np.diag(A), np.diag(K))
    rest = Z[:, : columns.start]
    B = rest @ rest.T
    assert np.linalg.norm(B - (T - K)) < 0.35 * np.linalg.norm(T - K)
    assert np.linalg.norm(B - K) > 0.25 * np.linalg.norm(K) or depth == 1


@pytest.mark.parametrize(("law", "parameters"), MAPS)
def test_kind_nngp(law, parameters, rng):
    for depth in [1, 2, 3]:
        X = rng.standard_normal((30, 10))
        fitted = law(depth=depth, kind="nngp", n_components=1024, random_state=0, **parameters).fit(X)
        Z, K = fitted.transform(X), nngp(X, depth=depth)
        assert 1001 <= Z.shape[1] <= 1024  # all 1001 monomials of a polynomial of degree 4, where these fit
        assert np.linalg.norm(Z @ Z.T - K) < 0.2 * np.linalg.norm(K)
        assert fitted.estimate_error(X) == pytest.approx(np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K))
        if law is not NTKPolynomialSketch:
            assert Z[:, fitted.nngp_columns_].shape == Z.shape
        sparse = law(depth=depth, kind="nngp", n_components=64, random_state=0, **parameters).fit(sp.csr_array(X))
        close(sparse.transform(X), sparse.transform(sp.csr_array(X)))


@pytest.mark.parametrize("directions", ["gaussian", "leverage", "orthogonal"])
def test_layers_hold_distinct_draws(directions, rng):
    """W of all layers, for κ₀ and κ₁; a map with one W for two of them is rejected."""
    X = rng.standard_normal((2, 32))
    fitted = NTKRandomFeatures(depth=3, n_components=64, directions=directions, random_state=0).fit(X)
    layers = drawn_layers(fitted).layers
    matrices = [1e3 * matrix for layer in layers for matrix in (layer.units.matrix, layer.units.slopes)]
    check_distinct(matrices)
    with pytest.raises(AssertionError, match="are the same"):
        check_distinct([*matrices, matrices[0]])
    check_distinct([signs for layer in layers for signs in layer.product.signs if len(signs) >= 64])


def test_layers_of_sketches_hold_distinct_draws(rng):
    X = rng.standard_normal((2, 64))
    for parameters in ({}, {"variant": "paper"}):
        fitted = NTKSketch(depth=3, n_components=128, degree=2, derivative_degree=2, random_state=0, **parameters)
        fitted.fit(X)
        draws = []
        for layer in drawn_layers(fitted).layers:
            draws += [signs for signs in layer.product.signs if len(signs) >= 64]
            for part in (layer.units.forward, layer.units.derivative):
                tree = part.poly.tree if parameters else part.tree
                draws += [signs for _, node in (*tree.nodes, *tree.roots) for signs in node.signs]
            draws += [layer.mix.signs] if layer.mix is not None else []
        assert len(draws) >= 3 * 5
        check_distinct(draws)


def test_adding_a_layer_keeps_the_draws_of_the_others():
    X = np.ones((1, 6))
    sizes = {"n_components": 16, "split": 0.5, "hidden_components": 8}
    one, two = (NTKRandomFeatures(depth=L, random_state=0, **sizes).fit(X) for L in (1, 2))
    one, two = (drawn_layers(fitted).layers[0].units.matrix for fitted in (one, two))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("law", ["gaussian", "leverage", "orthogonal"])
def test_directions(law):
    for n_features, size in [(1, 5), (3, 10), (8, 8), (8, 20), (20, 8)]:
        w = Directions(n_features, size, law).sample(np.random.SeedSequence(0))
        assert w.shape == (size, n_features)
        assert w.dtype == np.float32
        if law != "gaussian":
            np.testing.assert_allclose((w.astype(np.float64) ** 2).sum(1), n_features, rtol=1e-6)
        if law == "orthogonal":
            for start in range(0, size, n_features):
                block = w[start : start + n_features].astype(np.float64)
                np.testing.assert_allclose(block @ block.T, n_features * np.eye(len(block)), atol=1e-5)


def test_a_very_deep_kernel_is_still_approximated(rng):
    X = rng.standard_normal((100, 50))
    for depth in (30, 160):
        features = NTKPolynomialSketch(depth=depth, n_components=1024, random_state=0).fit(X)
        assert features.degree_ > 16
        assert features.estimate_error(X) < 0.2


@pytest.mark.parametrize("law", [NTKPolynomialSketch, NTKSketch, NTKRandomFeatures])
def test_one_component_is_the_same_in_both_precisions(law, rng):
    X = rng.standard_normal((200, 6)).astype(np.float32)
    features = law(n_components=1, random_state=0).fit(X)
    single, double = features.transform(X), features.transform(X.astype(np.float64))
    np.testing.assert_allclose(single, double, atol=1e-4 * np.abs(double).max())


def test_many_monomials_of_few_features_take_little_memory_and_are_exact(rng):
    X = rng.standard_normal((4, 3))
    features = NTKPolynomialSketch(n_components=16384, degree=128, random_state=0).fit(X)
    assert len(features.budget_.exact) > 5
    t = X @ X.T / np.outer(*[np.linalg.norm(X, axis=1)] * 2)
    norms = np.outer(*[np.linalg.norm(X, axis=1)] * 2)
    Z = features.transform(X)
    start = 0
    for degree, size in features.budget_.exact.items():
        if all(j in features.budget_.exact for j in features.budget_.coefficients if j < degree):
            part = Z[:, start : start + size]
            expected = features.coefficients_[degree] * t**degree * norms
            np.testing.assert_allclose(part @ part.T, expected, atol=1e-10)
            start += size


def test_errors_can_be_estimated_for_any_output_container(rng):
    X = rng.standard_normal((60, 10))
    features = NTKRandomFeatures(n_components=256, random_state=0).fit(X)
    expected = features.estimate_error(X)
    assert features.set_output(transform="pandas").estimate_error(X) == pytest.approx(expected)
    assert features.suggest_n_components(X, 0.3) > 0


# Parameters.


def test_nngp_columns_of_a_pickle_equal_the_fitted_ones(rng):
    X = rng.standard_normal((9, 5))
    first = NTKSketch(n_components=32, random_state=0).fit(X)
    columns = first.nngp_columns_
    assert pickle.loads(pickle.dumps(first)).nngp_columns_ == columns
    assert pickle.loads(pickle.dumps(first.set_params(variant="paper"))).nngp_columns_ == columns


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"split": 2.0, "variant": "paper"}, "split"),
        ({"split": "half", "kind": "nngp"}, "split"),
        ({"poly_components": 0}, "poly_components"),
        ({"derivative_poly_components": "a"}, "derivative_poly_components"),
    ],
)
def test_bad_values_are_rejected_where_a_parameter_is_not_used(parameters, name):
    with pytest.raises((ValueError, TypeError), match=f"'{name}' parameter of NTKSketch"):
        NTKSketch(**parameters).fit(np.ones((2, 3)))


def test_combinations_that_exclude_each_other():
    with pytest.raises(ValueError, match="'projection' parameter of NTKSketch must be False unless variant='paper'"):
        NTKSketch(projection=True).fit(np.ones((2, 3)))
    for law in (NTKSketch, NTKRandomFeatures):
        assert law(n_components=1).fit_transform(np.ones((2, 3))).shape == (2, 1)
        assert law(n_components=1, kind="nngp").fit_transform(np.ones((2, 3))).shape == (2, 1)
    assert NTKPolynomialSketch(n_components=1).fit_transform(np.ones((2, 3))).shape == (2, 1)
