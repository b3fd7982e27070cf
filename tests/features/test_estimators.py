"""What scikit-learn expects of an estimator, for all feature maps at once."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks
from tests.conftest import as_numpy
from threadpoolctl import threadpool_limits

from ntkit import (
    CNTKSketch,
    GradientFeatures,
    NetworkFeatures,
    NTKFeatures,
    NTKPolynomialSketch,
    NTKRandomFeatures,
    NTKSketch,
    PolynomialSketch,
)
from ntkit.kernels import network_kernel, ntk
from ntkit.networks import ReLU, fully_connected

SMALL = [
    NTKPolynomialSketch(n_components=16, degree=4),
    NTKSketch(n_components=16, degree=3, derivative_degree=3),
    NTKRandomFeatures(n_components=16),
    GradientFeatures(),
    NTKFeatures(n_components=16),
    PolynomialSketch(n_components=16),
    NetworkFeatures(n_components=16, degree=3, derivative_degree=3),
    CNTKSketch(2, n_components=16, degree=3, derivative_degree=3),
]
MAPS = pytest.mark.parametrize("estimator", SMALL, ids=lambda estimator: type(estimator).__name__)
NTK_MAPS = (NTKPolynomialSketch, NTKSketch, NTKRandomFeatures, NTKFeatures)
METHODS = ("auto", "polynomial", "random", "sketch", "gradient")
DENSE = (NetworkFeatures, CNTKSketch)
"""Maps that take no sparse rows."""


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On a busy machine threads of BLAS wait for each other: small QR decompositions then take seconds."""
    with threadpool_limits(1, user_api="blas"):
        yield


def fitted(estimator, X, **parameters):
    return clone(estimator).set_params(random_state=0, **parameters).fit(X)


@parametrize_with_checks(SMALL)
def test_scikit_learn_estimator_checks(estimator, check):
    check(estimator)


@MAPS
def test_many_estimator_checks_ran(estimator):
    checks = list(estimator_checks_generator(estimator))
    assert len(checks) >= 45
    assert len({str(check) for _, check in checks}) >= 45


@pytest.mark.parametrize(
    "law",
    [NTKPolynomialSketch, NTKSketch, NTKRandomFeatures, GradientFeatures, NTKFeatures, PolynomialSketch, *DENSE],
)
def test_defaults(law, rng):
    X = rng.standard_normal((6, 5))
    Z = law().fit_transform(X)
    assert Z.shape[0] == 6
    assert np.isfinite(Z).all()
    assert law().get_params() == law(**law().get_params()).get_params()
    assert repr(law()) == f"{law.__name__}()"


# Copies.


@MAPS
def test_clones_and_pickles(estimator, rng):
    X = rng.standard_normal((9, 5))
    first = fitted(estimator, X)
    Z = first.transform(X)
    np.testing.assert_array_equal(clone(first).fit_transform(X), Z)
    with pytest.raises(NotFittedError):
        clone(first).transform(X)
    stored = pickle.dumps(first)
    again = pickle.loads(stored)
    np.testing.assert_array_equal(again.transform(X), Z)
    np.testing.assert_array_equal(again.transform(X.astype(np.float32)), first.transform(X.astype(np.float32)))
    np.testing.assert_array_equal(again.get_feature_names_out(), first.get_feature_names_out())
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(again)).transform(X), Z)
    assert pickle.loads(pickle.dumps(estimator)).get_params() == estimator.get_params()
    with pytest.raises(NotFittedError):
        pickle.loads(pickle.dumps(clone(estimator))).transform(X)


@MAPS
def test_pickles_hold_draws_not_programs(estimator, rng):
    X = rng.standard_normal((9, 5))
    first = fitted(estimator, X)
    size = len(pickle.dumps(first))
    for rows in (X, X.astype(np.float32), X if isinstance(estimator, DENSE) else sp.csr_array(X)):
        first.transform(rows)
    stored = pickle.dumps(first)
    assert len(stored) == size
    for word in (b"_program", b"numba", b"Program"):
        assert word not in stored


def test_pickles_give_the_same_features_in_another_process(tmp_path, rng):
    X = rng.standard_normal((9, 5))
    maps = [fitted(estimator, X) for estimator in SMALL]
    (tmp_path / "maps.pickle").write_bytes(pickle.dumps((maps, X)))
    code = (
        "import pickle, sys, pathlib\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "maps, X = pickle.loads((folder / 'maps.pickle').read_bytes())\n"
        "(folder / 'features.pickle').write_bytes(pickle.dumps([m.transform(X) for m in maps]))\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code, str(tmp_path)], check=True, timeout=300)
    for feature_map, Z in zip(maps, pickle.loads((tmp_path / "features.pickle").read_bytes()), strict=True):
        np.testing.assert_array_equal(feature_map.transform(X), Z)


@pytest.mark.parametrize("changed", [{"normalize": False}, {"depth": 3}, {"kind": "nngp"}, {"n_components": 5}])
@pytest.mark.parametrize("law", [NTKPolynomialSketch, NTKSketch, NTKRandomFeatures])
def test_parameters_set_after_the_fit_wait_for_the_next_one(law, changed, rng):
    X = rng.standard_normal((9, 5))
    first = law(depth=2, n_components=32, random_state=0).fit(X)
    Z, names = first.transform(X), first.get_feature_names_out()
    first.set_params(**changed)
    np.testing.assert_array_equal(first.transform(X), Z)
    np.testing.assert_array_equal(first.get_feature_names_out(), names)
    again = pickle.loads(pickle.dumps(first))
    np.testing.assert_array_equal(again.transform(X), Z)
    assert again.transform(X).shape == first.fit_transform(X).shape or "n_components" in changed


def test_nngp_columns_of_a_pickle_are_those_of_the_fit(rng):
    X = rng.standard_normal((9, 5))
    first = NTKSketch(n_components=32, random_state=0).fit(X)
    columns = first.nngp_columns_
    assert pickle.loads(pickle.dumps(first)).nngp_columns_ == columns
    assert pickle.loads(pickle.dumps(first.set_params(variant="paper"))).nngp_columns_ == columns


# Names, data frames, pipelines.


@MAPS
def test_names_and_output(estimator, rng):
    import pandas as pd

    X = rng.standard_normal((4, 3))
    frame = pd.DataFrame(X, columns=["a", "b", "c"], index=[5, 6, 7, 8])
    first = fitted(estimator, frame)
    Z = first.transform(frame)
    assert isinstance(Z, np.ndarray)
    np.testing.assert_array_equal(first.feature_names_in_, ["a", "b", "c"])
    assert first.n_features_in_ == 3
    prefix = type(estimator).__name__.lower()
    names = [f"{prefix}{i}" for i in range(Z.shape[1])]
    np.testing.assert_array_equal(first.get_feature_names_out(), names)
    out = first.set_output(transform="pandas").transform(frame)
    assert list(out.columns) == names
    assert list(out.index) == [5, 6, 7, 8]
    np.testing.assert_array_equal(out.to_numpy(), Z)
    out = clone(estimator).set_params(random_state=0).set_output(transform="pandas").fit_transform(frame)
    np.testing.assert_array_equal(out.to_numpy(), Z)
    with pytest.raises(ValueError, match="feature names"):
        first.transform(frame[["c", "b", "a"]])
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        first.transform(X)
    first.set_output(transform="default").fit(X)
    assert not hasattr(first, "feature_names_in_")


@MAPS
def test_pipelines_and_grid_search(estimator):
    import pandas as pd

    X, y = load_digits(return_X_y=True)
    X, y = pd.DataFrame(X[:300] / 16).add_prefix("pixel"), y[:300]
    name = type(estimator).__name__.lower()
    grid = {f"{name}__n_components": [256, 512]}
    feature_map = clone(estimator).set_params(random_state=0)
    if isinstance(estimator, NTK_MAPS):
        grid[f"{name}__depth"] = [1, 2]
    elif isinstance(estimator, GradientFeatures):
        grid[f"{name}__net"] = [fully_connected(1), fully_connected(2)]
    search = GridSearchCV(make_pipeline(feature_map, RidgeClassifier()), grid, cv=2, error_score="raise").fit(X, y)
    assert search.best_score_ > 0.75
    assert len(search.cv_results_["params"]) == np.prod([len(values) for values in grid.values()])
    assert len(search.best_estimator_[:-1].get_feature_names_out()) <= 512


# Bad parameters.

SIZES = [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("a", TypeError), (True, TypeError), (np.nan, TypeError)]
FLAGS = [(1, TypeError), ("yes", TypeError), (None, TypeError), (np.nan, TypeError)]
WORDS = [("nothing", ValueError), (1, TypeError), (None, TypeError), (np.nan, TypeError)]
SHARES = [(-0.1, ValueError), (1.1, ValueError), (np.nan, ValueError), ("half", TypeError)]
REALS = [(-1.0, ValueError), (np.nan, ValueError), (np.inf, ValueError), ("a", TypeError), (None, TypeError)]
SEEDS = [(-1, ValueError), (0.5, TypeError), ("a", TypeError)]
NOTHING = [(None, TypeError)]
COMMON = {"batch_size": SIZES, "random_state": SEEDS}
LAYERS = {
    "depth": SIZES + NOTHING,
    "n_components": SIZES + NOTHING,
    "kind": WORDS,
    "normalize": FLAGS,
    "replace": FLAGS,
}
DEGREES = [*SIZES, (None, TypeError), (1000, ValueError)]
SHAPES = [((4, 4), ValueError), ((1, 1, 3, 1), ValueError), ("a", TypeError), (3, TypeError), (np.nan, TypeError)]
NETWORK = {
    "n_components": SIZES + NOTHING,
    "method": WORDS,
    "kind": WORDS,
    "hidden_components": SIZES,
    "derivative_components": SIZES,
    "directions": WORDS,
    "degree": DEGREES,
    "derivative_degree": DEGREES,
    "normalize": FLAGS,
    "replace": FLAGS,
    "image_shape": SHAPES,
    "precision": [x for x in WORDS if x[0] is not None],
    "progress": FLAGS,
}
BAD = {
    NTKPolynomialSketch: {
        "degree": [("high", ValueError), *DEGREES[:3], *DEGREES[4:]],
        "tol": [x for x in REALS if x[0] is not None],
        "width": SIZES,
        **LAYERS,
    },
    NTKSketch: {
        "degree": DEGREES,
        "derivative_degree": DEGREES,
        "series": WORDS,
        "variant": WORDS,
        "split": SHARES,
        "nngp_components": SIZES,
        "ntk_components": SIZES,
        "derivative_components": SIZES,
        "poly_components": SIZES,
        "derivative_poly_components": SIZES,
        "projection": FLAGS,
        **LAYERS,
    },
    NTKRandomFeatures: {
        "features": WORDS,
        "sampler": WORDS,
        "gibbs_sweeps": SIZES + NOTHING,
        "split": SHARES,
        "step_components": SIZES,
        "hidden_components": SIZES,
        **LAYERS,
    },
    GradientFeatures: {
        "width": SIZES, "n_components": SIZES, "net": [("relu", TypeError), (1, TypeError)], "image_shape": SHAPES,
    },
    NTKFeatures: {"depth": SIZES + NOTHING, "n_components": SIZES + NOTHING, "method": WORDS, "bias": REALS},
    PolynomialSketch: {
        "degree": SIZES + NOTHING, "gamma": REALS, "coef0": REALS, "n_components": SIZES + NOTHING, "method": WORDS,
        "normalize": FLAGS,
    },
    NetworkFeatures: {"net": [("relu", TypeError), (1, TypeError), (ReLU, TypeError)], "split": SHARES, **NETWORK},
    CNTKSketch: {"depth": SIZES + NOTHING, "kernel_size": [*SIZES, *NOTHING, ((3,), ValueError)], **NETWORK},
}  # fmt: skip
CASES = [
    pytest.param(law, name, value, error, id=f"{law.__name__}-{name}-{value!r}")
    for law, rules in BAD.items()
    for name, values in (rules | COMMON).items()
    for value, error in values
]


@pytest.mark.parametrize(("law", "name", "value", "error"), CASES)
def test_bad_parameters(law, name, value, error):
    """The message names the parameter, whose it is, the rule and the value."""
    parameters = {"variant": "paper"} if "poly_components" in name else {}
    rule = rf"'{name}' parameter of {law.__name__} must be .+\. Got {re.escape(repr(value))} instead"
    with pytest.raises(error, match=rule):
        law(**parameters | {name: value}).fit(np.ones((2, 3)))


def test_every_parameter_has_bad_values():
    for law, rules in BAD.items():
        assert set(rules) | set(COMMON) == set(law().get_params(deep=False))


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


@MAPS
def test_a_failed_fit_leaves_the_map_unfitted(estimator):
    X = np.ones((2, 3))
    for bad in ({"random_state": -1}, {"n_components": 0}):
        broken = clone(estimator).set_params(**bad)
        with pytest.raises(ValueError, match=next(iter(bad))):
            broken.fit(X)
        with pytest.raises(NotFittedError):
            broken.transform(X)
        with pytest.raises(NotFittedError):
            broken.get_feature_names_out()


@MAPS
def test_a_failed_second_fit_leaves_the_first(estimator, rng):
    """Or takes it back: a map of neither the old rows nor the new ones must not remain."""
    X = rng.standard_normal((4, 6))
    first = fitted(estimator, X)
    Z = first.transform(X)
    with pytest.raises(ValueError, match="n_components"):
        first.set_params(n_components=0).fit(X[:, :3])
    with pytest.raises((ValueError, NotFittedError), match=r"3 features|not fitted"):
        first.transform(X[:, :3])
    try:
        again = first.transform(X)
    except NotFittedError:
        return
    np.testing.assert_array_equal(again, Z)


# Bad rows.


@MAPS
def test_bad_rows(estimator, rng):
    X = rng.standard_normal((4, 5))
    first = fitted(estimator, X)
    for attempt in (first.transform, clone(estimator).fit):
        for value in (np.nan, np.inf, -np.inf):
            bad = X.copy()
            bad[1, 2] = value
            with pytest.raises(ValueError, match=r"Input X contains (NaN|infinity)"):
                attempt(bad)
            if not isinstance(estimator, DENSE):
                with pytest.raises(ValueError, match=r"contains (NaN|infinity)"):
                    attempt(sp.csr_array(bad))
        with pytest.raises(ValueError, match="0 sample"):
            attempt(np.zeros((0, 5)))
        with pytest.raises(ValueError, match="0 feature"):
            attempt(np.zeros((5, 0)))
        with pytest.raises(ValueError, match="Expected 2D array, got 1D array"):
            attempt(X[0])
        with pytest.raises(ValueError, match=r"dim 3|2-D .* or 4-D"):
            attempt(X[None])
        with pytest.raises(ValueError, match=r"could not convert|arrays? of bytes/strings"):
            attempt([["a", "b", "c", "d", "e"]])
        with pytest.raises(ValueError, match="Complex data not supported"):
            attempt(X * 1j)
    wrong_sizes = [X[:, :4], np.hstack([X, X])]
    if not isinstance(estimator, DENSE):
        wrong_sizes.append(sp.csr_array(X[:, :4]))
    for wrong in wrong_sizes:
        with pytest.raises(ValueError, match=rf"X has {wrong.shape[1]} features, but .* is expecting 5 features"):
            first.transform(wrong)


@MAPS
def test_bad_tensors(estimator):
    import torch

    X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    first = fitted(estimator, X)
    name = type(estimator).__name__
    for attempt in (first.transform, clone(estimator).fit):
        for value in (torch.nan, torch.inf):
            bad = X.clone()
            bad[1, 2] = value
            with pytest.raises(ValueError, match=rf"'X' parameter of {name} must be finite. Got .* at index \(1, 2\)"):
                attempt(bad)
        with pytest.raises(ValueError, match=rf"'X' parameter of {name} must be non-empty"):
            attempt(X[:0])
        with pytest.raises(ValueError, match=rf"'X' parameter of {name} must be 2-D .*reshape"):
            attempt(X[0])
        with pytest.raises(TypeError, match=rf"'X' parameter of {name} must be a dense tensor.*to_dense"):
            attempt(X.to_sparse())
        with pytest.raises(TypeError, match=rf"'X' parameter of {name} must be an array of real numbers"):
            attempt(X * 1j)
    with pytest.raises(ValueError, match=rf"X has 3 features, but {name} is expecting 5 features"):
        first.transform(X[:, :3])


@MAPS
def test_unfitted_maps(estimator, rng):
    import torch

    X = rng.standard_normal((4, 5))
    for rows in (X, sp.csr_array(X), torch.from_numpy(X)):
        with pytest.raises(NotFittedError):
            clone(estimator).transform(rows)
    with pytest.raises(NotFittedError):
        clone(estimator).get_feature_names_out()
    with pytest.raises(NotFittedError):
        clone(estimator).estimate_error(X)


@MAPS
def test_mixed_kinds(estimator, rng):
    """A map fitted on rows of one kind takes those of all others."""
    import torch

    X = rng.standard_normal((6, 20)) * (rng.random((6, 20)) < 0.8)
    kinds = {
        "numpy": X, "float32": X.astype(np.float32), "list": X.tolist(), "torch": torch.from_numpy(X),
        "torch32": torch.from_numpy(X).float(),
    }  # fmt: skip
    if not isinstance(estimator, DENSE):
        kinds |= {"csr": sp.csr_array(X), "matrix": sp.csc_matrix(X)}
    for fit_on in kinds.values():
        first = fitted(estimator, fit_on)
        Z = first.transform(X)
        for kind, rows in kinds.items():
            out = first.transform(rows)
            assert isinstance(out, torch.Tensor) == isinstance(rows, torch.Tensor)
            assert ("float32" in str(out.dtype)) == ("32" in kind)
            np.testing.assert_allclose(
                as_numpy(out), Z, rtol=0, atol=np.abs(Z).max() * (1e-5 if "32" in kind else 1e-12)
            )


@MAPS
def test_whole_numbers_and_views(estimator):
    X = np.arange(24).reshape(4, 6)
    first = fitted(estimator, X)
    Z = first.transform(X)
    assert Z.dtype == np.float64
    np.testing.assert_array_equal(first.transform(X.astype(np.float64)), Z)
    np.testing.assert_allclose(first.transform(np.repeat(X, 2, axis=1)[:, ::2].astype(np.float64)), Z, rtol=1e-12)
    kept = X.copy()
    first.transform(X)
    np.testing.assert_array_equal(X, kept)


# The front door.


@pytest.mark.parametrize("method", METHODS)
def test_methods_of_ntk_features(method, rng):
    X = rng.standard_normal((30, 20))
    features = NTKFeatures(2, 512, method=method, random_state=0).fit(X)
    Z, K = features.transform(X), ntk(X, depth=2)
    laws = {"polynomial": NTKPolynomialSketch, "random": NTKRandomFeatures, "sketch": NTKSketch}
    assert features.method_ == (method if method != "auto" else features.method_)
    assert features.method_ in METHODS[1:]
    if features.method_ == "gradient":
        inner = GradientFeatures(fully_connected(2), n_components=512, random_state=0)
        assert features.map_.weights_[0].shape[1] == 20
        np.testing.assert_allclose(network_kernel(fully_connected(2), X, kind="ntk"), K)
    else:
        inner = laws[features.method_](depth=2, n_components=512, random_state=0)
        assert np.linalg.norm(Z @ Z.T - K) < 0.2 * np.linalg.norm(K)
        np.testing.assert_allclose((Z**2).sum(1), 3 * (X**2).sum(1))
        assert Z.shape == (30, 512)
    assert type(features.map_) is type(inner)
    np.testing.assert_array_equal(inner.fit_transform(X), Z)
    assert len(features.get_feature_names_out()) == Z.shape[1]
    assert features.estimate_error(X) == pytest.approx(np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K))


def test_auto_is_no_worse_than_the_other_methods():
    """Over 5 seeds on digits; other maps are up to three times worse."""
    X = load_digits().data[:200] / 16
    errors = {}
    for method in METHODS[:4]:
        maps = [NTKFeatures(2, 512, method=method, random_state=s).fit(X) for s in range(5)]
        errors[method] = np.mean([features.estimate_error(X) for features in maps])
    assert errors["auto"] < 1.1 * min(errors.values())


def test_ntk_features_pass_their_parameters_on(rng):
    X = rng.standard_normal((30, 6))
    features = NTKFeatures(depth=3, n_components=40, batch_size=7, random_state=4).fit(X)
    parameters = features.map_.get_params()
    assert {k: parameters[k] for k in ("depth", "n_components", "batch_size", "random_state")} == {
        "depth": 3, "n_components": 40, "batch_size": 7, "random_state": 4,
    }  # fmt: skip
    sparse = NTKFeatures(n_components=40, random_state=0).fit(sp.csr_array(X))
    np.testing.assert_allclose(sparse.transform(X), sparse.transform(sp.csr_array(X)), atol=1e-12)
    inner = NTKPolynomialSketch(n_components=40, random_state=0).fit(sp.csr_array(X))
    if sparse.method_ == "polynomial":
        np.testing.assert_array_equal(inner.transform(X), sparse.transform(X))


def test_messages_of_the_front_door_are_its_own():
    X = np.ones((2, 3))
    with pytest.raises(ValueError, match="'random_state' parameter of NTKFeatures"):
        NTKFeatures(random_state=-1).fit(X)
    for method in ("random", "sketch", "polynomial", "gradient"):
        assert NTKFeatures(n_components=1, method=method).fit_transform(X).shape == (2, 1)
