"""Fastfood: random Fourier features of kernels of the distance by Hadamard transforms."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkit._random import generator
from ntkit.features._spectral import check_rotations, tails
from ntkit.features.fourier import FourierMap, Multiply
from ntkit.kernels.distances import DistanceKernel
from ntkit.programs import Program, power_of_two, run

_SMALLEST = 64  # order of the transforms at least: a step of the program for fewer numbers is not worth its start


class FastfoodFeatures(FourierMap):
    """Fastfood features of the Gaussian, Laplace and Matérn kernels, [1]_: Fourier features in O(m log d) per row.

    The frequencies are the rows of independent blocks

        V = 1/(ℓ√n) S H G Π H B / ‖g‖,

    n the power of two ≥ d (and ≥ 64) to which x is zero-padded, H the Hadamard matrix with entries ±1, B random signs,
    Π a random permutation, G = diag(g) with g ~ N(0, I), S independent lengths of the law χ_n (times √(2ν/u) with
    u ~ χ²_{2ν} for Matérn kernels, ν = 1/2 for Laplace). With the first h = ⌈m/2⌉ rows w_i of all blocks the features
    of an even number m of components are

        Z(x) = h^{-1/2} [cos(w_1·x), …, cos(w_h·x), sin(w_1·x), …, sin(w_h·x)],

        E Z(x)·Z(y) = k(x, y),   Var Z(x)·Z(y) ≈ [(1 − k²)² + ((h − 1)/n) k² (‖z‖⁴ − 2Σ_j z_j⁴)]/m,   ‖Z(x)‖ = 1,

    z = (x − y)/ℓ, the variance for the Gaussian and up to O(1/n²) for h ≤ n. With more blocks, h a multiple of n, it is
    the same with n in place of h (but not of m). An odd m is as in :class:`RandomFourierFeatures`.

    Parameters
    ----------
    n_components : int
        Number m of features. Little is saved below 2n, as a block is computed as a whole.
    kernel : {"gaussian", "laplace", "matern"}
        The kernel, with the Euclidean norm.
    kernel_params : dict or None
        ``{"nu": 2.5}`` of "matern" (1.5 if not given).
    lengthscale : float > 0 or "scale"
        ℓ, as in :class:`RandomFourierFeatures`.
    batch_size : int or None
        Most rows to work on at a time; None: as many as suit the cache or the device.
    random_state : None, int, RandomState or Generator
        Draws the frequencies in `fit`. Equal seeds give equal features for NumPy and torch and for any batch size,
        up to rounding.

    Attributes
    ----------
    lengthscale_ : float
        ℓ.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    O(⌈m/(2n)⌉ n log n + m) per row and O(m + n) numbers held, in place of O(d m) for both. Sparse rows become dense, a
    few at a time.

    Each frequency has exactly the law that it has in :class:`RandomFourierFeatures`, so the mean is exact for any d:
    given B and Π a row of V is an orthogonal matrix times g/‖g‖ with some signs flipped, a uniform direction, times an
    independent length. The frequencies of a block are not independent of each other. For close pairs, m ≥ 2n and the
    Gaussian the variance is twice that of independent ones (:class:`RandomFourierFeatures`) if z has many entries of
    similar size, and next to nothing if it has a single one. The formula is by a second-order expansion in 1/n; [1]_
    has an upper bound.

    References
    ----------
    .. [1] Le, Sarlós, Smola, "Fastfood – Approximating Kernel Expansions in Loglinear Time", ICML 2013, Section 3.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import FastfoodFeatures
    >>> from ntkit.kernels import gaussian
    >>> X = np.random.default_rng(0).standard_normal((50, 100))
    >>> Z = FastfoodFeatures(4096, lengthscale=10.0, random_state=0).fit_transform(X)
    >>> bool(np.abs(Z @ Z.T - gaussian(X, lengthscale=10.0)).max() < 0.1)
    True
    """

    def _draw_frequencies(self, seed: np.random.SeedSequence, size: int, kernel: DistanceKernel) -> None:
        check_rotations(kernel, type(self).__name__)
        n = max(power_of_two(self.n_features_in_), _SMALLEST)
        shape = -(-size // n), n
        signs = generator(seed, "fastfood", "signs").integers(2, size=shape, dtype=np.int8)
        self._signs = np.ascontiguousarray(1 - 2 * signs[:, : self.n_features_in_])
        places = np.tile(np.arange(n, dtype=np.int32), (shape[0], 1))
        self._places = generator(seed, "fastfood", "places").permuted(places, axis=1)
        normals = generator(seed, "fastfood", "normals").standard_normal(shape)
        self._directions = normals / np.linalg.norm(normals, axis=1, keepdims=True)
        self._lengths = np.sqrt(generator(seed, "fastfood", "lengths").chisquare(n, size))
        self._lengths *= np.ravel(tails(kernel, seed, (size, n)))
        self._program = self._emit()

    def _emit(self) -> Program:
        """The phases of a row as a program."""
        n, size = self._places.shape[1], len(self._lengths)
        program = Program((self.n_features_in_,))
        x = program.load(scale=1 / (self.lengthscale_ * n**0.5))
        if n > power_of_two(self.n_features_in_):
            x = program.concatenate([x, program.constant(np.zeros(n - self.n_features_in_))])
        ones = np.ones(n)
        for block, start in enumerate(range(0, size, n)):
            signs = np.ones(program.size(x))
            signs[: self.n_features_in_] = self._signs[block]
            mixed = program.gather(program.hadamard(x, signs), self._places[block], self._directions[block])
            lengths = self._lengths[start : start + n]
            rows = np.arange(len(lengths), dtype=np.int32)
            program.output(program.gather(program.hadamard(mixed, ones), rows, lengths))
        return program

    def _host_phases(self, dtype: np.dtype, *, sparse: bool) -> tuple[Multiply, int]:
        from ntkit.programs import host

        plan = host.plan(self._program, dtype, sparse=sparse)
        idle: list[host.Workspace] = []  # of threads between two tiles

        def multiply(X: Any, Z: np.ndarray) -> None:
            try:
                space = idle.pop()
            except IndexError:
                space = plan.workspace()
            space.run([X], Z)  # which has more columns than the program writes
            idle.append(space)

        return multiply, host.lanes(dtype)

    def _tensor_phases(self, X: Any) -> Any:
        return run(self._program, (X,), batch_size=self.batch_size)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_program"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_lengths" in state:
            self._program = self._emit()
