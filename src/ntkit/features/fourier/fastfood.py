"""Fastfood: Fourier features whose frequencies are never stored explicitly."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkit._random import generator
from ntkit.features.fourier.maps import FourierMap, FourierPlan, WaveDraws
from ntkit.features.fourier.spectral import spectral_factors
from ntkit.programs import Program, power_of_two, run

_MIN_ORDER = 64  # smallest order of the Hadamard matrices: smaller matrices have too few distinct rows


class FastfoodDraws(WaveDraws):
    """Phases computed by a program of Hadamard transforms."""

    def __init__(self, plan: FourierPlan, seed: np.random.SeedSequence):
        super().__init__(plan, seed)
        d, size = plan.n_features, plan.n_frequencies
        n = max(power_of_two(d), _MIN_ORDER)
        shape = -(-size // n), n
        signs = generator(seed, "fastfood", "signs").integers(2, size=shape, dtype=np.int8)
        places = np.tile(np.arange(n, dtype=np.int32), (shape[0], 1))
        places = generator(seed, "fastfood", "places").permuted(places, axis=1)
        normals = generator(seed, "fastfood", "normals").standard_normal(shape)
        directions = normals / np.linalg.norm(normals, axis=1, keepdims=True)
        lengths = np.sqrt(generator(seed, "fastfood", "lengths").chisquare(n, size))
        lengths *= np.ravel(spectral_factors(plan.kernel, seed, (size, n)))
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
        plan, idle = self._plans[key]  # `idle` holds workspaces that no thread uses at the moment
        try:
            space = idle.pop()
        except IndexError:
            space = plan.workspace()
        space.run([X], out)  # `out` has more columns than the program writes
        idle.append(space)

    def min_tile_rows(self, dtype: np.dtype) -> int:
        """See :meth:`WaveDraws.min_tile_rows`."""
        from ntkit.programs import host

        return host.lanes(dtype)


class FastfoodFeatures(FourierMap):
    """Fastfood features of the Gaussian, Laplace and Matérn kernels [1]_: Fourier features in O(m log d) per row.

    The frequencies are the rows of independent blocks

        V = 1/(ℓ√n) S H G Π H B / ‖g‖,

    where n is the power of two ≥ d (and ≥ 64) to which x is zero-padded, H the Hadamard matrix with entries ±1, B
    random signs, Π a random permutation, G = diag(g) with g ~ N(0, I), and S independent lengths of the law χ_n (times
    √(2ν/u) with u ~ χ²_{2ν} for Matérn kernels, ν = 1/2 for Laplace). Let w_i be the first h = ⌈m/2⌉ rows of all
    blocks. For an even number m of components the features are

        Z(x) = h^{-1/2} [cos(w_1·x), …, cos(w_h·x), sin(w_1·x), …, sin(w_h·x)],

        E Z(x)·Z(y) = k(x, y),   Var Z(x)·Z(y) ≈ [(1 − k²)² + ((h − 1)/n) k² (‖z‖⁴ − 2Σ_j z_j⁴)]/m,   ‖Z(x)‖ = 1,

    with z = (x − y)/ℓ. The variance is for the Gaussian kernel and h ≤ n, up to O(1/n²). With more blocks, h a multiple
    of n, replace h by n in the formula (but keep m). An odd m is treated as in :class:`RandomFourierFeatures`.

    Parameters
    ----------
    n_components : int
        Number m of features. Values below 2n save little time, because a block is always computed as a whole.
    kernel : {"gaussian", "laplace", "matern"}
        The kernel, with the Euclidean norm.
    kernel_params : dict or None
        ``{"nu": 2.5}`` for "matern" (default 1.5).
    lengthscale : float > 0 or "scale"
        ℓ, as in :class:`RandomFourierFeatures`.
    batch_size : int or None
        Largest number of rows to work on at a time; None: chosen to suit the cache or the device.
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
    A row takes O(⌈m/(2n)⌉ n log n + m) time, and the map holds O(m + n) numbers, instead of O(d m) for both. Sparse
    rows are made dense, a few at a time.

    Each frequency has exactly the same law as in :class:`RandomFourierFeatures`, so the mean is exact for any d. Given
    B and Π, a row of V is an orthogonal matrix times g/‖g‖ with some signs flipped, which is a uniform direction, times
    an independent length. The frequencies of a block depend on each other. For close pairs, m ≥ 2n and the Gaussian
    kernel, the variance is twice the variance of :class:`RandomFourierFeatures` if z has many entries of similar size,
    and almost zero if z has a single nonzero entry. The formula is a second-order expansion in 1/n; [1]_ gives an upper
    bound.

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
        """Allow a few numbers for each entry of the blocks."""
        return 256 * (plan.n_frequencies + 2 * max(plan.n_features, 64))

    def _draw(self, plan: FourierPlan, seed: np.random.SeedSequence) -> FastfoodDraws:
        return FastfoodDraws(plan, seed)
