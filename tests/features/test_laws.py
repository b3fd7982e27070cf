"""The laws of all feature maps: unbiased inner products, on dense and on one-hot rows, and variances that fall as 1/m.

Maps are judged without `normalize`, which trades a bias for a smaller variance. One-hot rows are where structured
draws (Hadamard matrices, signs, permutations) differ most from independent ones: rows of more than 16 columns, as
products of Hadamard matrices of lower order are not used.

The level of a check is the probability of a false alarm; 1e-6, split over the entries (nominal, see
``tests/statistical.py``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests import tiers
from tests.reference.cntk_sketch import series_kernel
from tests.reference.features import polynomial_kernel
from tests.statistical import (
    check_rms_scaling,
    check_unbiased,
    check_uncorrelated,
    check_variance,
    gram_matrices,
    judge_mean,
    spread_rows,
)
from threadpoolctl import threadpool_limits

from ntkit import networks as nn
from ntkit.features import (
    CNTKSketch,
    DotProductSketch,
    FastfoodFeatures,
    GegenbauerFeatures,
    GradientFeatures,
    MaclaurinFeatures,
    NetworkFeatures,
    NTKPolynomialSketch,
    NTKRandomFeatures,
    NTKSketch,
    OrthogonalFourierFeatures,
    PolynomialSketch,
    RandomFourierFeatures,
)
from ntkit.kernels import gaussian, network_kernel, nngp, ntk

SEED = 100_000 * int(os.environ.get("NTKIT_TEST_SEED", "0"))  # the nightly sweep
N_SEEDS = tiers.scaled(120, 400)
LENGTHSCALE = 1.5
SERIES = (0.3, 0.5, 0.4, 0.2)
SHAPES = {20: (5, 2, 2), 32: (4, 4, 2), 64: (4, 4, 4)}
CONV = nn.Sequential(nn.Conv(3), nn.ReLU(), nn.GlobalAvgPool(), nn.Dense())
FLAT = nn.Sequential(nn.Conv(3), nn.ReLU(), nn.Flatten(), nn.Dense())
RESIDUAL = nn.Sequential(nn.Dense(), nn.Residual(nn.Sequential(), nn.Sequential(nn.ReLU(), nn.Dense())), nn.Dense())
SMOOTH = nn.Sequential(nn.Dense(), nn.Erf(), nn.Dense())


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """On a busy machine threads of BLAS wait for each other: small QR decompositions then take seconds."""
    with threadpool_limits(1, user_api="blas"):
        yield


# Rows.


def one_hot(n_features: int) -> np.ndarray:
    """Rows with one or two entries; cosines −1, −√½, 0, √½, 1 and norms from ½ to 2."""
    first, second, last = np.eye(n_features)[[0, 1, -1]]
    return np.array([first, 2 * first, -0.5 * first, second, first + second, 0.7 * (first - second), 1.5 * last])


def cosines(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cosines of all pairs, and the products of their norms."""
    norms = np.linalg.norm(X, axis=1)
    return X @ X.T / np.outer(norms, norms), np.outer(norms, norms)


def images(X: np.ndarray) -> np.ndarray:
    return X.reshape(len(X), *SHAPES[X.shape[1]])


# The maps.


@dataclass(frozen=True)
class Law:
    """A map of m components for rows X, and the mean of its Gram matrix."""

    make: Callable[[int, np.ndarray], Any]
    exact: Callable[[np.ndarray, Any], np.ndarray]
    """From rows and a map fitted on them."""
    n_components: int = 256
    n_features: tuple[int, ...] = (20, 32, 64)
    rate: bool = True
    """True if the rate of the error is checked, with rows of many columns."""


def polynomial(X: np.ndarray, coefficients: Any) -> np.ndarray:
    return np.polynomial.polynomial.polyval(X @ X.T, coefficients)


def polynomial_of_cosines(X: np.ndarray, coefficients: Any) -> np.ndarray:
    t, norms = cosines(X)
    return norms * np.polynomial.polynomial.polyval(t, coefficients)


def quadratic(t: np.ndarray) -> np.ndarray:
    return 0.3 + 0.5 * t + 0.2 * t**2


def network(net: nn.Layer, *, of_images: bool = False, **parameters: Any) -> Law:
    """NetworkFeatures of a network with one activation; a sketch has its kernel with polynomials of degrees 2 and 3."""

    def make(m: int, X: np.ndarray) -> Any:
        degrees = {"degree": 2, "derivative_degree": 3, "image_shape": SHAPES[X.shape[1]] if of_images else None}
        return NetworkFeatures(net, n_components=m, normalize=False, **degrees, **parameters)

    def exact(X: np.ndarray, _: Any) -> np.ndarray:
        kind, X = parameters.get("kind", "ntk"), images(X) if of_images else X
        if parameters.get("method") == "random":
            return network_kernel(net, X, kind=kind)
        return series_kernel(net, X, 2, 3)[("nngp", "ntk").index(kind)]

    return Law(make, exact, n_features=(20, 32) if of_images else (20, 32, 64), rate=not of_images)


def cntk_law(method: str) -> Law:
    """The NNGP kernel of one layer: the NTK has two."""

    def make(m: int, X: np.ndarray) -> Any:
        return CNTKSketch(
            depth=1, n_components=m, image_shape=SHAPES[X.shape[1]], kind="nngp", method=method, normalize=False
        )

    def exact(X: np.ndarray, _: Any) -> np.ndarray:
        net = nn.cntk(1)
        return (
            network_kernel(net, images(X), kind="nngp")
            if method == "random"
            else series_kernel(net, images(X), 2, 3)[0]
        )

    return Law(make, exact, n_features=(20, 32), rate=False)


def fourier(law: Any) -> Law:
    return Law(
        lambda m, _: law(n_components=m, lengthscale=LENGTHSCALE), lambda X, _: gaussian(X, lengthscale=LENGTHSCALE)
    )


LAWS = {
    "NTKPolynomialSketch": Law(
        lambda m, _: NTKPolynomialSketch(depth=2, degree=6, n_components=m, normalize=False),
        lambda X, fitted: polynomial_of_cosines(X, fitted.coefficients_),
    ),
    "NTKSketch": Law(
        lambda m, _: NTKSketch(degree=2, derivative_degree=3, n_components=m, normalize=False),
        lambda X, fitted: polynomial_kernel(X, 1, fitted.coefficients_, fitted.derivative_coefficients_),
    ),
    "NTKSketch paper": Law(
        lambda m, _: NTKSketch(degree=2, derivative_degree=3, n_components=m, variant="paper", normalize=False),
        lambda X, fitted: polynomial_kernel(X, 1, fitted.coefficients_, fitted.derivative_coefficients_),
    ),
    "NTKRandomFeatures": Law(
        lambda m, _: NTKRandomFeatures(n_components=m, normalize=False), lambda X, _: ntk(X, depth=1)
    ),
    "NTKRandomFeatures nngp": Law(
        lambda m, _: NTKRandomFeatures(n_components=m, kind="nngp", normalize=False), lambda X, _: nngp(X, depth=1)
    ),
    "NetworkFeatures": network(nn.fully_connected(1)),
    "NetworkFeatures nngp": network(nn.fully_connected(1), kind="nngp"),
    "NetworkFeatures random": network(nn.fully_connected(1), method="random"),
    "NetworkFeatures random nngp": network(nn.fully_connected(1), method="random", kind="nngp"),
    "NetworkFeatures random smooth": network(SMOOTH, method="random"),
    "NetworkFeatures residual": replace(network(RESIDUAL), n_features=(20,), rate=False),
    "NetworkFeatures orthogonal": network(nn.fully_connected(1), method="random", directions="orthogonal"),
    "NetworkFeatures images": network(CONV, of_images=True),
    "NetworkFeatures random images": network(FLAT, of_images=True, method="random"),
    "CNTKSketch": cntk_law("sketch"),
    "CNTKSketch random": cntk_law("random"),
    "GradientFeatures": Law(
        lambda m, _: GradientFeatures(width=m // 2), lambda X, _: network_kernel(nn.fully_connected(1), X)
    ),
    "GradientFeatures images": Law(
        lambda m, X: GradientFeatures(CONV, width=m // 2, image_shape=SHAPES[X.shape[1]]),
        lambda X, _: network_kernel(CONV, images(X)),
        n_features=(20, 32),
        rate=False,
    ),
    "GegenbauerFeatures": Law(
        lambda m, _: GegenbauerFeatures(quadratic, n_components=m, tolerance=0.0),
        lambda X, _: polynomial_of_cosines(X, (0.3, 0.5, 0.2)),
        n_components=128,
        n_features=(20, 32),  # degree 2 is dropped for many columns
        rate=False,
    ),
    "GegenbauerFeatures random": Law(
        lambda m, _: GegenbauerFeatures(quadratic, n_components=m, tolerance=0.0, harmonics=False),
        lambda X, _: polynomial_of_cosines(X, (0.3, 0.5, 0.2)),
    ),
    "RandomFourierFeatures": fourier(RandomFourierFeatures),
    "OrthogonalFourierFeatures": fourier(OrthogonalFourierFeatures),
    "FastfoodFeatures": fourier(FastfoodFeatures),
    "MaclaurinFeatures": Law(
        lambda m, _: MaclaurinFeatures(SERIES, n_components=m, degree=3), lambda X, _: polynomial(X, SERIES)
    ),
    "PolynomialSketch": Law(
        lambda m, _: PolynomialSketch(degree=3, gamma=0.5, coef0=0.7, n_components=m, normalize=False),
        lambda X, _: (0.5 * X @ X.T + 0.7) ** 3,
    ),
    "PolynomialSketch count": Law(
        lambda m, _: PolynomialSketch(degree=3, gamma=0.5, coef0=0.7, n_components=m, method="count"),
        lambda X, _: (0.5 * X @ X.T + 0.7) ** 3,
    ),
    "DotProductSketch": Law(
        lambda m, _: DotProductSketch(SERIES, n_components=m, degree=3, normalize=False),
        lambda X, _: polynomial(X, SERIES),
    ),
}


def sampler(law: Law, m: int, X: np.ndarray) -> Callable[[int], Callable[[np.ndarray], Any]]:
    """Seed ↦ feature map, for the statistical checks; every map is drawn once."""
    feature_map = law.make(m, X)

    @cache
    def features(seed: int) -> np.ndarray:
        return feature_map.set_params(random_state=seed).fit(X).transform(X)

    return lambda seed: lambda _: features(seed)


def scaled(factor: float, sample: Any) -> Any:
    return lambda seed: lambda X: factor * sample(seed)(X)


def rows_of(n_features: int) -> dict[str, np.ndarray]:
    return {"dense": spread_rows(n_features), "one-hot": one_hot(n_features)}


CASES = [(name, n_features) for name, law in LAWS.items() for n_features in law.n_features]
if not tiers.ALL:  # one number of columns for each
    CASES = [(name, law.n_features[i % len(law.n_features)]) for i, (name, law) in enumerate(LAWS.items())]


@pytest.mark.parametrize(("name", "n_features"), CASES)
def test_inner_products_are_unbiased(name: str, n_features: int) -> None:
    """And features 5 % too long or too short are noticed, as are zeros."""
    law, parts = LAWS[name], rows_of(n_features)
    X = np.concatenate(list(parts.values()))
    sample = sampler(law, law.n_components, X)
    exact = law.exact(X, law.make(law.n_components, X).set_params(random_state=0).fit(X))
    grams = gram_matrices(sample, X, N_SEEDS, SEED)
    biased = {}
    for kind, rows in (("dense", slice(0, 6)), ("one-hot", slice(6, None))):
        for factor in (1.05, 0.95, 0.0):
            with pytest.raises(AssertionError):
                judge_mean(factor**2 * grams[:, rows, rows], exact[rows, rows])
        try:
            judge_mean(grams[:, rows, rows], exact[rows, rows])
        except AssertionError as error:
            biased[kind] = str(error)
    assert not biased


@pytest.mark.parametrize("name", tiers.sampled([name for name, law in LAWS.items() if law.rate], 6))
def test_four_times_the_components_halve_the_error(name: str) -> None:
    """Rows of 300 columns, more than the components, so that no degree but 0 is exact."""
    law, X = LAWS[name], spread_rows(300)
    exact = law.exact(X, law.make(256, X).set_params(random_state=0).fit(X))
    known = {m: sampler(law, m, X) for m in (64, 256)}
    options: dict[str, Any] = {"n_components": 64, "n_seeds": 100, "seed": SEED, "low": 0.35, "high": 0.65}
    check_rms_scaling(lambda m, seed: known[m](seed), X, exact, **options)
    with pytest.raises(AssertionError):  # components that are not used
        check_rms_scaling(lambda _, seed: known[64](seed), X, exact, **options)


# Sketches of the branches of residual networks.


@pytest.mark.parametrize("kind", ["dense", "one-hot"])
def test_sketches_of_wide_residual_layers_are_unbiased(kind: str) -> None:
    """Eight linear branches of 20 columns, sketched to 32 before an activation, both Σ and Θ.

    With polynomials of degree 1 for the dual activations, Σ after it is linear in ⟨φ, φ′⟩ and Θ in ⟨ψ, ψ′⟩ and in
    ⟨φ, φ′⟩ one by one: sketches of φ and ψ that are unbiased and independent leave it unbiased. Wrong scales do not.
    """
    net = nn.Sequential(nn.Dense(), nn.Residual(*[nn.Dense(weight_std=0.5)] * 8), nn.ReLU(), nn.Dense())
    X = rows_of(20)[kind]
    exact = series_kernel(net, X, 1, 1)
    parameters = {"degree": 1, "derivative_degree": 1, "hidden_components": 32, "derivative_components": 64}
    features = NetworkFeatures(net, n_components=256, kind="both", normalize=False, **parameters).fit(X)
    grams, n_seeds = [], tiers.scaled(250, 400)
    for seed in range(SEED, SEED + n_seeds):
        Z = features.set_params(random_state=seed).fit(X).transform(X)
        grams.append([Z[:, features.nngp_columns_], Z[:, features.ntk_columns_]])
    for part in range(2):
        check = lambda factor, part=part: check_unbiased(  # noqa: E731
            lambda seed: lambda _: factor * grams[seed - SEED][part], X, exact[part], n_seeds=n_seeds, seed=SEED
        )
        check(1.0)
        for factor in (1.05, 0.95):
            with pytest.raises(AssertionError):
                check(factor)


def test_sketches_of_wide_residual_layers_are_independent() -> None:
    """Sketches of φ and ψ are independent: the errors of Σ and of Θ are uncorrelated.

    After an activation that is nearly the identity, Σ depends only on the sketch of φ, and Θ only on the sketch of ψ.
    One sketch for both gives a correlation near 1.
    """
    last = nn.Dense(trainable=False)
    net = nn.Sequential(nn.Dense(), nn.Residual(*[nn.Dense(weight_std=0.5)] * 8), nn.LeakyReLU(0.9), last)
    X = spread_rows(20)
    parameters = {"degree": 1, "derivative_degree": 1, "hidden_components": 32}
    features = NetworkFeatures(net, 1024, kind="both", normalize=False, **parameters)

    @cache
    def parts(seed: int) -> tuple[np.ndarray, np.ndarray]:
        Z = features.set_params(random_state=seed).fit(X).transform(X)
        return Z[:, features.nngp_columns_], Z[:, features.ntk_columns_]

    first, second = (lambda seed, part=part: lambda _: parts(seed)[part] for part in (0, 1))
    check_uncorrelated(first, second, X, X, n_seeds=N_SEEDS, seed=SEED)
    with pytest.raises(AssertionError):
        check_uncorrelated(second, second, X, X, n_seeds=N_SEEDS, seed=SEED)


# The checks themselves.


def gaussian_products(m: int, *, shared: bool = False) -> Callable[[int], Callable[[np.ndarray], np.ndarray]]:
    """⟨x, y⟩² by products of two Gaussian projections, with one and the same projection if `shared`."""

    def sample(seed: int) -> Callable[[np.ndarray], np.ndarray]:
        rng = np.random.default_rng(seed)

        def features(X: np.ndarray) -> np.ndarray:
            first, second = rng.standard_normal((2, X.shape[1], m))
            return (X @ first) * (X @ (first if shared else second)) / m**0.5

        return features

    return sample


FAULTS: dict[str, Callable[[Any], Any]] = {
    "zero": lambda _: lambda _: lambda X: np.zeros((len(X), 4)),
    "constant": lambda _: lambda _: lambda X: np.ones((len(X), 4)),
    "no scale": lambda sample: scaled(256**0.5, sample),
    "lost factor": lambda sample: scaled(2**-0.5, sample),
    "5 % too long": lambda sample: scaled(1.05, sample),
    "5 % too short": lambda sample: scaled(0.95, sample),
    "shared draws": lambda _: gaussian_products(256, shared=True),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_of_means_rejects_faults(fault: str) -> None:
    X = spread_rows(20)
    sample = gaussian_products(256)
    check_unbiased(sample, X, (X @ X.T) ** 2, seed=SEED)
    with pytest.raises(AssertionError):
        check_unbiased(FAULTS[fault](sample), X, (X @ X.T) ** 2, seed=SEED)


def test_the_check_of_variances_rejects_faults() -> None:
    """E (g·x)²(g·y)² = 1 + 2t² for unit rows of cosine t, so that products of two have E = (1 + 2t²)² − t⁴ over m."""
    X = spread_rows(20)
    t, norms = cosines(X)
    variance = norms**4 * ((1 + 2 * t**2) ** 2 - t**4) / 256
    check_variance(gaussian_products(256), X, variance, seed=SEED)
    for faulty in (gaussian_products(64), gaussian_products(2048), gaussian_products(256, shared=True)):
        with pytest.raises(AssertionError):
            check_variance(faulty, X, variance, seed=SEED)
    assert gram_matrices(gaussian_products(8), X, 3).shape == (3, 6, 6)
