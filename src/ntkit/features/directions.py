"""Random directions: the only code that draws Gaussian, orthogonal and structured ones.

All laws give rows w with E w wᵀ = I whose direction w/‖w‖ is exactly uniform on the sphere, for every single row. So
features of homogeneous activations, and of any with Gaussian norms, are unbiased for all rows, sparse ones too. The
laws differ in how the rows depend on each other.
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
_WHOLE = 1024  # features up to which all directions of an orthogonal block are orthogonal to each other
_BLOCK = 256  # directions of a block beyond that: the time of a QR decomposition grows with its square
_SMALL = 256  # features up to which orthonormal blocks come from LAPACK's QR, several at a time


@dataclass(frozen=True)
class Directions:
    """Law of a matrix of `size` random rows of `n_features` numbers; :meth:`sample` draws it, as float32.

    "gaussian": independent, N(0, I). "leverage": √d times uniform directions, the leverage-score law of Eq. 15 of [1]_
    (density ∝ ‖w‖² e^{−‖w‖²/2}, of which features use the direction only), drawn directly or with
    ``sampler="gibbs"`` by its Algorithm 3. "orthogonal": √d times Haar-distributed orthonormal rows, in independent
    blocks of d (of 256 where d > 1024). "hadamard": orthogonal in blocks of n, the power of two ≥ d, each a random
    rotation made of n log n numbers (:func:`random_rotations`) times a Hadamard matrix with random signs, of
    which the first d columns are kept. It is drawn in a small part of the time, with the same variance.

    With `gaussian_norms` rows get the norms of Gaussian ones, which matter to activations that are not homogeneous.

    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features", NeurIPS 2021.
    """

    n_features: int
    size: int
    law: str = "hadamard"
    gaussian_norms: bool = False
    sampler: str = "exact"
    sweeps: int = 1

    def draw_bytes(self) -> int:
        """Bound for the memory that `sample` takes: the result, and the blocks that threads draw.

        Gibbs sampling takes 2 µs for a number in each sweep, in which 256 bytes could be filled.
        """
        n = {"hadamard": power_of_two(self.n_features), "orthogonal": min(self.n_features, _WHOLE)}.get(self.law, 1)
        block = max(n, _BLOCK)
        n_blocks = min(count_threads(), -(-self.size // block))
        n_sweeps = self.sweeps if self.sampler == "gibbs" else 0
        each = 32 + 256 * n_sweeps
        return each * self.n_features * self.size + 32 * n_blocks * block * max(n, self.n_features)

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
    """Orthogonal matrices of order n, a power of two, with rows that are uniform on the sphere; n log₂ n draws each.

    With rotations A, B of order s and angles θ_i, one of order 2s has the rows

        (cos θ_i a_i, sin θ_i b_i)   and   (−sin θ_i a_i, cos θ_i b_i).

    The squared norm of one half of a uniform vector of 2s numbers has the law Beta(s/2, s/2), and its halves have
    uniform directions: with cos²θ_i of that law, and signs, the rows are uniform if those of A and B are. They are
    orthonormal, but not jointly Haar-distributed.
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
    """Blocks Q H D of order n, Q a random rotation and D random signs, and the first columns of them."""
    n = power_of_two(n_features)

    def block(rng: np.random.Generator, count: int) -> np.ndarray:
        signs = 1 - 2 * rng.integers(0, 2, (count, 1, n), dtype=np.int8).astype(np.float32)
        rotations = rng.permutation(random_rotations(rng, count, n), axis=1).astype(np.float32)
        return (array_api.hadamard(rotations) * signs)[..., :n_features]

    return _in_blocks(seed, n_features, size, n, block)


def _orthogonal(seed: np.random.SeedSequence, n_features: int, size: int) -> np.ndarray:
    """Blocks of Haar-distributed orthonormal rows, times √d."""
    n = n_features if n_features <= _WHOLE else _BLOCK
    return _in_blocks(seed, n_features, size, n, lambda rng, count: n_features**0.5 * haar(rng, n_features, (count, n)))


def _in_blocks(
    seed: np.random.SeedSequence,
    n_features: int,
    size: int,
    n: int,
    block: Callable[[np.random.Generator, int], np.ndarray],
) -> np.ndarray:
    """Independent blocks of n rows, as float32; a task draws a few small ones or a large one."""
    at_once = max(_BLOCK // n, 1)
    out = np.empty((size, n_features), np.float32)

    def draw(start: int) -> None:
        stop = min(start + at_once * n, size)
        rows = block(generator(seed, "block", start // n), -(-(stop - start) // n))
        out[start:stop] = rows.reshape(-1, n_features)[: stop - start]

    # Each on its own thread: QR on several threads waits for all of them at every column.
    run_on_threads(draw, range(0, size, at_once * n))
    return out


def with_gaussian_norms(w: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows with the norms of Gaussian vectors."""
    lengths = np.sqrt(rng.chisquare(w.shape[1], len(w)))
    return (w * (lengths / np.linalg.norm(w, axis=1))[:, None]).astype(np.float32)


def uniform(seed: np.random.SeedSequence, n_features: int, size: int, *, orthogonal: bool) -> np.ndarray:
    """Uniform unit vectors in columns, (d, size), in float64; orthonormal in blocks of d (256 at most) if asked for."""
    if not orthogonal:
        w = generator(seed, "directions").standard_normal((size, n_features))
        return np.ascontiguousarray((w / np.linalg.norm(w, axis=1, keepdims=True)).T)
    block = min(n_features, _BLOCK)
    rows = [haar(generator(seed, "block", i), n_features, block) for i in range(-(-size // block))]
    return np.ascontiguousarray(np.concatenate([np.empty((0, n_features)), *rows])[:size].T)


def orthonormal_rows(seed: np.random.SeedSequence, n_features: int, size: int) -> np.ndarray:
    """Rows that are orthonormal and Haar-distributed in blocks of d, in float64, (size, d)."""
    rows = np.empty((size, n_features))
    at_once = n_features * max(_SMALL // n_features, 1)

    def draw(start: int) -> None:
        block = rows[start : start + at_once]
        rng = generator(seed, start // at_once)
        if n_features > _SMALL:
            orthonormalize(rng.standard_normal(out=block))
        else:
            count = -(-len(block) // n_features)
            block[...] = haar(rng, n_features, (count, n_features)).reshape(-1, n_features)[: len(block)]

    run_on_threads(draw, range(0, size, at_once))
    return rows


def orthonormalize(rows: np.ndarray) -> None:
    """Make Gaussian rows, no more than they have columns, orthonormal, uniformly distributed.

    Gram–Schmidt, which is QR with a positive diagonal of R. A panel takes up to half of the dimensions
    left, so its Gram matrix is well conditioned, and Cholesky's factor of it, all in matrix products, is exact enough.
    """
    n_rows, d = rows.shape
    done = 0
    while done < n_rows:
        panel, before = rows[done : done + max((d - done) // 2, 1)], rows[:done]
        panel -= (panel @ before.T) @ before
        # Not SciPy's triangular solver: its BLAS has threads of its own, which would wait beside NumPy's.
        panel[...] = np.linalg.inv(np.linalg.cholesky(panel @ panel.T)) @ panel
        done += len(panel)


def haar(rng: np.random.Generator, n_features: int, shape: int | tuple[int, ...]) -> np.ndarray:
    """Orthonormal rows, uniformly distributed: `shape` of them, or (…, n), n ≤ d for each of several matrices.

    QR of Gaussian matrices, the diagonal of R made positive.
    """
    *leading, size = (shape,) if isinstance(shape, int) else shape
    q, r = np.linalg.qr(rng.standard_normal((*leading, n_features, size)))
    signs = np.where(np.diagonal(r, axis1=-2, axis2=-1) < 0, -1.0, 1.0)
    return np.swapaxes(q * signs[..., None, :], -2, -1)


def gibbs(seed: np.random.SeedSequence, *, n_features: int, size: int, sweeps: int) -> np.ndarray:
    """Rows of density ∝ ‖w‖² e^{−‖w‖²/2} by Algorithm 3: from N(0, I), every coordinate given the others, in turn.

    Given z, the sum of the other squares, a coordinate has the distribution function
    F(t) = Φ(t) − t e^{−t²/2} / (√(2π) (z + 1)), inverted here by bisection, for all rows at once.
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
    for _ in range(60):  # 18 · 2^{-60}: all digits of the middle
        middle = 0.5 * (low + high)
        density = np.exp(-0.5 * middle**2) / np.sqrt(2 * np.pi)
        below = ndtr(middle) - middle * density / (z + 1.0) < u
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 0.5 * (low + high)
