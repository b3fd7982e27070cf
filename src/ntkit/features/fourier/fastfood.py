"""Fastfood: Fourier features whose frequencies are never written out."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkit._random import generator
from ntkit.features.fourier.maps import FourierMap, FourierPlan, WaveDraws
from ntkit.features.fourier.spectral import tails
from ntkit.programs import Program, power_of_two, run

_SMALLEST = 64  # order of the Hadamard matrices at least: smaller ones have too few different rows


class FastfoodDraws(WaveDraws):
    """Phases by a program of Hadamard transforms."""

    def __init__(self, plan: FourierPlan, seed: np.random.SeedSequence):
        super().__init__(plan, seed)
        d, size = plan.n_features, plan.n_frequencies
        n = max(power_of_two(d), _SMALLEST)
        shape = -(-size // n), n
        signs = generator(seed, "fastfood", "signs").integers(2, size=shape, dtype=np.int8)
        places = np.tile(np.arange(n, dtype=np.int32), (shape[0], 1))
        places = generator(seed, "fastfood", "places").permuted(places, axis=1)
        normals = generator(seed, "fastfood", "normals").standard_normal(shape)
        directions = normals / np.linalg.norm(normals, axis=1, keepdims=True)
        lengths = np.sqrt(generator(seed, "fastfood", "lengths").chisquare(n, size))
        lengths *= np.ravel(tails(plan.kernel, seed, (size, n)))
        self.program = program = Program((d,))
        x = program.load(scale=1 / (plan.kernel.lengthscale * n**0.5))
        if n > power_of_two(d):
            x = program.concatenate([x, program.constant(np.zeros(n - d))])
        for block, start in enumerate(range(0, size, n)):
            diagonal = np.ones(program.size(x))
            diagonal[:d] = 1 - 2 * signs[block, :d]
            mixed = program.gather(program.hadamard(x, diagonal), places[block], directions[block])
            rows = np.arange(min(n, size - start), dtype=np.int32)
            program.output(program.gather(program.hadamard(mixed, np.ones(n)), rows, lengths[start : start + n]))
        self._plans: dict[Any, tuple[Any, list[Any]]] = {}

    def phases(self, X: Any, tables: Any) -> Any:  # noqa: ARG002
        """See :meth:`WaveDraws.phases`."""
        return run(self.program, (X,))

    def write_phases(self, X: Any, tables: Any, out: np.ndarray) -> None:  # noqa: ARG002
        """See :meth:`WaveDraws.write_phases`."""
        from ntkit import _array
        from ntkit.programs import host

        key = out.dtype, _array.is_sparse(X)
        if key not in self._plans:
            self._plans[key] = host.plan(self.program, out.dtype, sparse=key[1]), []
        plan, idle = self._plans[key]  # workspaces of threads between two tiles
        try:
            space = idle.pop()
        except IndexError:
            space = plan.workspace()
        space.run([X], out)  # which has more columns than the program writes
        idle.append(space)

    def least_rows(self, dtype: np.dtype) -> int:
        """See :meth:`WaveDraws.least_rows`."""
        from ntkit.programs import host

        return host.lanes(dtype)


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
    >>> Z = FastfoodFeatures(n_components=4096, lengthscale=10.0, random_state=0).fit_transform(X)
    >>> bool(np.abs(Z @ Z.T - gaussian(X, lengthscale=10.0)).max() < 0.1)
    True
    """

    _rotated = True

    def _draw_bytes(self, plan: FourierPlan) -> int:
        """A few numbers for each entry of the blocks."""
        return 256 * (plan.n_frequencies + 2 * max(plan.n_features, 64))

    def _draw(self, plan: FourierPlan, seed: np.random.SeedSequence) -> FastfoodDraws:
        return FastfoodDraws(plan, seed)
