"""Spectral laws: the law of w such that E cos(w·(x − y)) is the kernel k(x − y) (Bochner's theorem).

- Gaussian: w = g/ℓ with g ~ N(0, I).
- Matérn: w = g √(2ν/u)/ℓ with u ~ χ²_{2ν}. This is Student's law in d dimensions with 2ν degrees of freedom.
- Laplace: as Matérn with ν = 1/2, which is Cauchy's law in d dimensions.
- Laplace with the ℓ1 norm: w_i = g_i/(√u_i ℓ) with u_i ~ χ²_1, Cauchy's law in each coordinate.

References: Rahimi, Recht, "Random Features for Large-Scale Kernel Machines", NIPS 2007, Figure 1, for Gaussian and
Laplace kernels; Rasmussen, Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, Eq. (4.15), for the
Matérn density.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkit._random import generator
from ntkit._validation import check_choice, message
from ntkit.kernels.distances import DistanceKernel, Gaussian, Matern
from ntkit.kernels.spec import of_estimator

KERNELS = ("gaussian", "laplace", "matern")


def distance_kernel(kernel: Any, params: Any, lengthscale: float, owner: str) -> DistanceKernel:
    """Return the kernel that the parameters of a map name."""
    check_choice(kernel, "kernel", owner, KERNELS)
    found = of_estimator(kernel, {"lengthscale": lengthscale}, params, owner)
    assert isinstance(found, DistanceKernel)
    return found


def spectral_factors(
    kernel: DistanceKernel, seed: np.random.SeedSequence, shape: tuple[int, int]
) -> np.ndarray | float:
    """Draw the factors that turn frequencies of the law N(0, I/ℓ²), one per row, into frequencies of the kernel's law.

    Drawing more rows does not change the first ones.
    """
    if isinstance(kernel, Gaussian):
        return 1.0
    rng = generator(seed, "fourier", "tails")
    if kernel.absolute:
        return rng.chisquare(1, shape) ** -0.5
    degrees = 2 * kernel.nu if isinstance(kernel, Matern) else 1.0
    return np.sqrt(degrees / rng.chisquare(degrees, (shape[0], 1)))


def check_rotations(kernel: DistanceKernel, owner: str) -> None:
    """Raise an error unless the density of w depends only on ‖w‖."""
    if kernel.absolute:
        rule = "'l2' for orthogonal frequencies: the law for 'l1' is not rotation invariant"
        remedy = "Use RandomFourierFeatures, whose frequencies are independent."
        raise ValueError(message(owner, "norm", rule, "l1", remedy))
