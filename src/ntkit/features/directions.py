"""Random directions: Gaussian, orthogonal and structured. No other module draws them.

In all laws each row w has E w wᵀ = I, and its direction w/‖w‖ is exactly uniform on the sphere. So features of
homogeneous activations are unbiased for all data, sparse data too; with Gaussian norms this holds for all activations.
The laws differ in how the rows depend on each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from ntkit._batching import count_threads, run_on_threads
from ntkit._random import generator, keyed
from ntkit.programs import array_api, power_of_two

Law: TypeAlias = Literal["hadamard", "orthogonal", "gaussian", "leverage"]
LAWS: tuple[str, ...] = get_args(Law)
_FULL_BLOCK_FEATURES = 1024  # up to this many features d, orthogonal blocks have d directions
_BLOCK = 256  # directions per block above that: the time of a QR decomposition grows with the square of this number
_LAPACK_FEATURES = 256  # up to this many features, orthonormal blocks come from LAPACK's QR, several at a time


@dataclass(frozen=True)
class Directions:
    """Law of a random matrix with `size` rows and `n_features` columns; :meth:`sample` draws it, as float32.

    * "gaussian": independent N(0, I) rows.
    * "leverage": √d times uniform directions. This is the leverage-score law of Eq. 15 of [1]_, with density
      ∝ ‖w‖² e^{−‖w‖²/2}; features only use the direction. It is drawn directly, or by Algorithm 3 of [1]_ with
      ``sampler="gibbs"``.
    * "orthogonal": √d times Haar-distributed orthonormal rows, in independent blocks of d rows (256 rows if d > 1024).
    * "hadamard": orthogonal in blocks of n rows, n the power of two ≥ d. A block is a random rotation made from
      n log n numbers (:func:`random_rotations`) times a Hadamard matrix with random signs; its first d columns are
      kept. It is much faster to draw than "orthogonal" and has the same variance.

    With `gaussian_norms` rows get the norms of Gaussian vectors, which matter for activations that are not homogeneous.

    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features", NeurIPS 2021.
    """

    n_features: int
    size: int
    law: str = "hadamard"
    gaussian_norms: bool = False
    sampler: str = "exact"
    sweeps: int = 1

    def draw_bytes(self) -> int:
        """Return an upper bound on the bytes that `sample` takes: the result and the blocks that threads draw.

        The time of Gibbs sampling counts as memory: 2 µs per number and sweep, enough to fill 256 bytes.
        """
        rows = {"hadamard": power_of_two(self.n_features), "orthogonal": min(self.n_features, _FULL_BLOCK_FEATURES)}
        n = rows.get(self.law, 1)
        block = max(n, _BLOCK)
        n_blocks = min(count_threads(), -(-self.size // block))
        n_sweeps = self.sweeps if self.sampler == "gibbs" else 0
        bytes_per_number = 32 + 256 * n_sweeps
        return bytes_per_number * self.n_features * self.size + 32 * n_blocks * block * max(n, self.n_features)

    def sample(self, seed: np.random.SeedSequence) -> np.ndarray:
        """Draw the matrix, (size, n_features)."""
        d, size = self.n_features, self.size
        if self.law == "gaussian":
            return generator(seed, "directions").standard_normal((size, d)).astype(np.float32)
        if self.law == "hadamard":
            w = _hadamard(seed, d, size)
        elif self.law == "orthogonal":
            w = _orthogonal(seed, d, size)
        else:
            if self.sampler == "gibbs":
                w = gibbs(keyed(seed, "gibbs"), n_features=d, size=size, sweeps=self.sweeps)
            else:
                w = generator(seed, "directions").standard_normal((size, d))
            w = (w * (d**0.5 / np.linalg.norm(w, axis=1, keepdims=True))).astype(np.float32)
        return with_gaussian_norms(w, generator(seed, "norms")) if self.gaussian_norms else w


def random_rotations(rng: np.random.Generator, count: int, n: int) -> np.ndarray:
    """Draw `count` orthogonal matrices of order n, a power of two, from n log₂ n random numbers each.

    Every row is uniform on the sphere. Rotations A, B of order s and angles θ_i make a rotation of order 2s with rows

        (cos θ_i a_i, sin θ_i b_i)   and   (−sin θ_i a_i, cos θ_i b_i).

    For a uniform vector of length 2s, the squared norm of one half has the law Beta(s/2, s/2), and both halves have
    uniform directions. So if cos²θ_i has this law, with random signs, and the rows of A and B are uniform, then the new
    rows are uniform too. They are orthonormal, but not jointly Haar-distributed.
    """
    out = 1.0 - 2.0 * rng.integers(0, 2, (count * n, 1, 1))  # matrices of order 1
    size = 1
    while size < n:
        squares = rng.beta(size / 2, size / 2, (len(out) // 2, size, 1))
        signs = 1.0 - 2.0 * rng.integers(0, 2, (2, *squares.shape))
        cos, sin = signs[0] * np.sqrt(squares), signs[1] * np.sqrt(1 - squares)
        a, b = out[0::2], out[1::2]
        upper, lower = np.concatenate([cos * a, sin * b], axis=2), np.concatenate([-sin * a, cos * b], axis=2)
        out = np.concatenate([upper, lower], axis=1)
        size *= 2
    return out


def _hadamard(seed: np.random.SeedSequence, n_features: int, size: int) -> np.ndarray:
    """Draw blocks Q H D of order n, with a random rotation Q and random signs D, and keep their first columns."""
    n = power_of_two(n_features)

    def block(rng: np.random.Generator, count: int) -> np.ndarray:
        signs = 1 - 2 * rng.integers(0, 2, (count, 1, n), dtype=np.int8).astype(np.float32)
        rotations = rng.permutation(random_rotations(rng, count, n), axis=1).astype(np.float32)
        return (array_api.hadamard(rotations) * signs)[..., :n_features]

    return _in_blocks(seed, n_features, size, n, block)


def _orthogonal(seed: np.random.SeedSequence, n_features: int, size: int) -> np.ndarray:
    """Draw blocks of Haar-distributed orthonormal rows, times √d."""
    n = n_features if n_features <= _FULL_BLOCK_FEATURES else _BLOCK
    return _in_blocks(seed, n_features, size, n, lambda rng, count: n_features**0.5 * haar(rng, n_features, (count, n)))


def _in_blocks(
    seed: np.random.SeedSequence,
    n_features: int,
    size: int,
    n: int,
    block: Callable[[np.random.Generator, int], np.ndarray],
) -> np.ndarray:
    """Draw independent blocks of n rows, as float32; one task draws a large block or several small ones."""
    at_once = max(_BLOCK // n, 1)
    out = np.empty((size, n_features), np.float32)

    def draw(start: int) -> None:
        stop = min(start + at_once * n, size)
        rows = block(generator(seed, "block", start // n), -(-(stop - start) // n))
        out[start:stop] = rows.reshape(-1, n_features)[: stop - start]

    # One thread per task: a QR decomposition on several threads synchronizes them at every column.
    run_on_threads(draw, range(0, size, at_once * n))
    return out


def with_gaussian_norms(w: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Scale rows to the norms of Gaussian vectors."""
    lengths = np.sqrt(rng.chisquare(w.shape[1], len(w)))
    return (w * (lengths / np.linalg.norm(w, axis=1))[:, None]).astype(np.float32)


def uniform(seed: np.random.SeedSequence, n_features: int, size: int, *, orthogonal: bool) -> np.ndarray:
    """Draw uniform unit vectors as columns, (d, size), in float64.

    If `orthogonal`, they are orthonormal in blocks of min(d, 256).
    """
    if not orthogonal:
        w = generator(seed, "directions").standard_normal((size, n_features))
        return np.ascontiguousarray((w / np.linalg.norm(w, axis=1, keepdims=True)).T)
    block = min(n_features, _BLOCK)
    rows = [haar(generator(seed, "block", i), n_features, block) for i in range(-(-size // block))]
    return np.ascontiguousarray(np.concatenate([np.empty((0, n_features)), *rows])[:size].T)


def orthonormal_rows(seed: np.random.SeedSequence, n_features: int, size: int) -> np.ndarray:
    """Draw rows that are orthonormal and Haar-distributed in blocks of d, in float64, (size, d)."""
    rows = np.empty((size, n_features))
    at_once = n_features * max(_LAPACK_FEATURES // n_features, 1)

    def draw(start: int) -> None:
        block = rows[start : start + at_once]
        rng = generator(seed, start // at_once)
        if n_features > _LAPACK_FEATURES:
            orthonormalize(rng.standard_normal(out=block))
        else:
            count = -(-len(block) // n_features)
            block[...] = haar(rng, n_features, (count, n_features)).reshape(-1, n_features)[: len(block)]

    run_on_threads(draw, range(0, size, at_once))
    return rows


def orthonormalize(rows: np.ndarray) -> None:
    """Orthonormalize Gaussian rows in place; the result is Haar-distributed. There must be no more rows than columns.

    This is Gram–Schmidt, which equals QR with a positive diagonal of R. A panel takes up to half of the remaining
    dimensions. So its Gram matrix is well conditioned, and a Cholesky factorization of it, which runs in matrix
    products, is accurate enough.
    """
    n_rows, d = rows.shape
    done = 0
    while done < n_rows:
        panel, before = rows[done : done + max((d - done) // 2, 1)], rows[:done]
        panel -= (panel @ before.T) @ before
        # Not SciPy's triangular solver: its BLAS has its own threads, which would compete with NumPy's threads.
        panel[...] = np.linalg.inv(np.linalg.cholesky(panel @ panel.T)) @ panel
        done += len(panel)


def haar(rng: np.random.Generator, n_features: int, shape: int | tuple[int, ...]) -> np.ndarray:
    """Draw Haar-distributed orthonormal rows: `shape` rows, or for a shape (…, n) several matrices of n ≤ d rows.

    The method is a QR decomposition of Gaussian matrices, with the diagonal of R made positive.
    """
    *leading, size = (shape,) if isinstance(shape, int) else shape
    q, r = np.linalg.qr(rng.standard_normal((*leading, n_features, size)))
    signs = np.where(np.diagonal(r, axis1=-2, axis2=-1) < 0, -1.0, 1.0)
    return np.swapaxes(q * signs[..., None, :], -2, -1)


def gibbs(seed: np.random.SeedSequence, *, n_features: int, size: int, sweeps: int) -> np.ndarray:
    """Draw rows of density ∝ ‖w‖² e^{−‖w‖²/2} by Gibbs sampling (Algorithm 3), started from N(0, I).

    Given the sum z of the squares of the other coordinates, a coordinate has the distribution function
    F(t) = Φ(t) − t e^{−t²/2} / (√(2π) (z + 1)). It is inverted by bisection, for all rows at once.
    """
    w = generator(seed, "start").standard_normal((size, n_features))
    uniforms = generator(seed, "uniforms")
    squares = (w**2).sum(axis=1)
    for _ in range(sweeps):
        for j in range(n_features):
            z = np.maximum(squares - w[:, j] ** 2, 0.0)
            w[:, j] = _inverse(uniforms.random(size), z)
            squares = z + w[:, j] ** 2
    return w


def _inverse(u: np.ndarray, z: np.ndarray) -> np.ndarray:
    from scipy.special import ndtr

    low, high = np.full_like(u, -9.0), np.full_like(u, 9.0)
    for _ in range(60):  # the interval shrinks to 18 · 2^{-60}, below float64 precision
        middle = 0.5 * (low + high)
        density = np.exp(-0.5 * middle**2) / np.sqrt(2 * np.pi)
        below = ndtr(middle) - middle * density / (z + 1.0) < u
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 0.5 * (low + high)
