"""Base classes of distributions and operators; compositions and direct sums of operators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import row_batches
from ntkit._random import RandomState, keyed, seed_sequence
from ntkit._validation import check_int, check_same_library, describe, message, real_array
from ntkit.programs import Program, array_api, run, transpose

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

_LARGEST_MATRIX = 2**24  # limit on the entries of `Operator.matrix` and of the unit vectors that it maps


class Distribution(ABC):
    """Distribution of a random linear map: sizes and structure, no draws."""

    n_components: int

    @abstractmethod
    def sample(self, rng: RandomState = None) -> Operator:
        """Draw an operator.

        Parameters
        ----------
        rng : None, int, numpy Generator, RandomState or SeedSequence
            Equal seeds give equal operators. Distributions of different classes or sizes draw independently, even
            from equal seeds.
        """

    def draw_bytes(self) -> int:
        """Return an upper bound on the bytes that `sample` allocates for signs, rows and nodes.

        It allows 100 bytes per degree and unit of size. Each degree counts for at least 2¹⁷ bytes: drawing even a
        small node takes a millisecond, the time in which 2¹⁷ bytes could be filled.
        """
        names = ("n_features", "n_components", "width", "inner_components")
        sizes = [getattr(self, name, None) or 0 for name in names]
        total = sum(sum(size) if isinstance(size, tuple) else size for size in sizes)
        n_nodes = max(getattr(self, "degree", 1), len(getattr(self, "coefficients", ())))
        return n_nodes * max(100 * total, 2**17)

    def _seed(self, rng: RandomState) -> np.random.SeedSequence:
        """Return the seed of this distribution, keyed by its name and sizes so that one int can seed several."""
        name = type(self).__name__
        return keyed(seed_sequence(rng, owner=f"{name}.sample", name="rng"), name, *self._key())

    def _key(self) -> Iterator[int]:
        """Yield the integer fields, which distinguish distributions of one class.

        Floats are left out because their last bit may differ between machines.
        """
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, int):
                yield int(value)

    def _check_sizes(self, *names: str, maximum: int | None = None) -> None:
        """Convert the named attributes to ints ≥ 1, or raise."""
        for name in names:
            size = check_int(getattr(self, name), name, type(self).__name__, minimum=1, maximum=maximum)
            object.__setattr__(self, name, size)


class Operator(ABC):
    """A drawn linear map S from ℝ^{d₁} ⊗ … ⊗ ℝ^{d_p} to ℝ^m, expressed in the steps of :mod:`ntkit.programs`.

    Attributes
    ----------
    factors : tuple of int
        d₁, …, d_p.
    n_components : int
        m.
    """

    factors: tuple[int, ...]
    n_components: int
    __array_ufunc__ = None  # keeps NumPy from treating an operator as a scalar in ``array @ operator``

    @property
    def degree(self) -> int:
        """Number p of tensor factors."""
        return len(self.factors)

    @abstractmethod
    def emit(self, program: Program, *values: int) -> int:
        """Append the steps that map the tensor product of `values`; return the index of the resulting value."""

    def apply(self, *X: Array) -> Array:
        """Map the tensor products of the rows of p arrays, or the p-th tensor powers of the rows of one array.

        Parameters
        ----------
        *X : arrays of shape (…, d_i)
            p arrays with equal leading axes, or one array used for all p factors. Accepts NumPy arrays, torch tensors
            on any device and SciPy sparse rows. NaN and infinities propagate as in a matrix product.

        Returns
        -------
        array of shape (…, n_components)
            Same library, device and dtype as X; float64 for integer input.
        """
        X = check_rows(X, self.factors, f"{type(self).__name__}.apply")
        return run(self._program(len(X)), X)

    def apply_transpose(self, V: Array) -> Array:
        """Map rows v to Sᵀv.

        Parameters
        ----------
        V : array of shape (…, n_components)
            NumPy array, torch tensor or SciPy sparse rows.

        Returns
        -------
        array of shape (…, d₁⋯d_p)
            Entries are in the order of ``numpy.kron``.

        Notes
        -----
        For operators on vectors (p = 1) this takes as long as :meth:`apply`. For p > 1 the result has d₁⋯d_p entries
        per row, and S is formed explicitly in blocks of columns.

        Examples
        --------
        >>> import numpy as np
        >>> from ntkit.sketches import OSNAP
        >>> S = OSNAP(6, 4).sample(0)
        >>> v = np.arange(4.0)
        >>> bool(np.allclose(S.apply_transpose(v), S.matrix().T @ v))
        True
        """
        (V,) = check_rows((V,), (self.n_components,), f"{type(self).__name__}.apply_transpose", "V")
        if self.degree == 1:
            return run(self._cached("transpose", lambda: transpose(self._program(1))), (V,))
        V = V.toarray() if _array.is_sparse(V) else V
        xp: Any = _array.namespace(V)
        dtype = _array.result_dtype(V)
        parts = []
        for block in self._blocks_of_columns():
            columns = xp.asarray(block, device=_array.device(V))
            parts.append(xp.matmul(xp.astype(V, dtype, copy=False), xp.astype(columns, dtype, copy=False).T))
        return xp.concat(parts, axis=-1)

    def matrix(self) -> np.ndarray:
        """Return the explicit matrix of shape (n_components, d₁⋯d_p), in the order of ``numpy.kron``.

        Only for small sizes: larger ones raise a ValueError.
        """
        size = prod(self.factors)
        if size * max(self.n_components, *self.factors) > _LARGEST_MATRIX:
            raise ValueError(
                f"{type(self).__name__}.matrix() is for small sizes: {self.n_components} × {size} entries, computed "
                f"from {size} unit vectors, exceed the limit of {_LARGEST_MATRIX} numbers. Use apply(), which does not "
                f"form the matrix."
            )
        return np.concatenate(list(self._blocks_of_columns())).T

    def as_linear_operator(self) -> LinearOperator:
        """Return this map as a SciPy ``LinearOperator`` of shape (n_components, d₁⋯d_p).

        Notes
        -----
        For p > 1 a vector of the tensor space need not be a tensor product. Mapping a general vector takes d₁⋯d_{p−1}
        times as long as mapping a tensor product.

        Examples
        --------
        >>> import numpy as np
        >>> from scipy.sparse.linalg import svds
        >>> from ntkit.sketches import SRHT
        >>> S = SRHT(64, 16).sample(0).as_linear_operator()
        >>> S.shape
        (16, 64)
        >>> svds(S, k=1)[1]  # all singular values of an SRHT are √(n/m)
        array([2.])
        """
        from scipy.sparse.linalg import LinearOperator

        size = prod(self.factors)
        return LinearOperator(
            (self.n_components, size),
            matvec=lambda x: self._apply_tensors(np.reshape(x, (1, -1)))[0],
            rmatvec=lambda v: self.apply_transpose(np.reshape(v, -1)),
            matmat=lambda X: self._apply_tensors(np.asarray(X).T).T,
            rmatmat=lambda V: self.apply_transpose(np.asarray(V).T).T,
            dtype=np.float64,
        )

    def _apply_tensors(self, X: np.ndarray) -> np.ndarray:
        """Apply S to general rows of shape (d₁⋯d_p,).

        A row is a sum of tensor products of unit vectors (first p − 1 factors) with its slices (last factor).
        """
        if self.degree == 1:
            return self.apply(X)
        out = np.zeros((len(X), self.n_components))
        rows = X.reshape(len(X), prod(self.factors[:-1]), self.factors[-1])
        for start, units in self._unit_vectors(self.factors[:-1]):
            block = rows[:, start : start + len(units[0])]
            repeated = [np.broadcast_to(u, (len(X), *u.shape)) for u in units]
            out += self.apply(*repeated, block).sum(axis=1)
        return out

    def _blocks_of_columns(self) -> Iterator[np.ndarray]:
        """Yield the columns of S in blocks, stored as rows."""
        for _, units in self._unit_vectors(self.factors):
            yield self.apply(*units)

    def _unit_vectors(self, sizes: tuple[int, ...]) -> Iterator[tuple[int, list[np.ndarray]]]:
        """Yield all tensor products of unit vectors in blocks: the index of the first, and the rows of each factor."""
        for rows in row_batches(prod(sizes), 8 * (sum(self.factors) + 2 * self.n_components)):
            index = np.unravel_index(np.arange(rows.start, rows.stop), sizes)
            yield rows.start, [(np.arange(d) == i[:, None]).astype(float) for d, i in zip(sizes, index, strict=True)]

    def __matmul__(self, other: object) -> Operator:
        if not isinstance(other, Operator):
            raise TypeError(
                f"outer @ inner composes two operators. Got {describe(other)} on the right. To map rows, use apply(X)."
            )
        if self.factors != (other.n_components,):
            raise ValueError(
                f"outer @ inner needs an outer operator on the {other.n_components} components of the inner operator. "
                f"Got {self!r} and {other!r}."
            )
        return Composition(self, other)

    def __repr__(self) -> str:
        d, p = self.factors[0], self.degree
        equal = p > 1 and len(set(self.factors)) == 1
        sizes = f"{d}^{p}" if equal else " × ".join(map(str, self.factors))
        return f"{type(self).__name__}({sizes} → {self.n_components})"

    def of_vectors(self, *vectors: np.ndarray) -> np.ndarray:
        """Map one tensor product of float64 vectors, without compiled code."""
        return array_api.evaluate(self._program(self.degree), [vector[None] for vector in vectors])[0][0]

    def _program(self, n_inputs: int) -> Program:
        """Return the program for p inputs, or for one input that is used for all p factors."""

        def build() -> Program:
            program = Program(self.factors[:n_inputs])
            values = [program.load(k if n_inputs > 1 else 0) for k in range(self.degree)]
            program.output(self.emit(program, *values))
            return program

        return self._cached(n_inputs, build)

    def _cached(self, key: Hashable, build: Callable[[], Program]) -> Program:
        if key not in self._programs:
            self._programs[key] = build()
        return self._programs[key]

    @cached_property
    def _programs(self) -> dict[Hashable, Program]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_programs"}


class DegreesOperator(Operator):
    """An operator on x ⊗ … ⊗ x that can also sketch lower tensor powers of x."""

    lowest: ClassVar[int]
    """The lowest degree."""

    @abstractmethod
    def emit_degrees(self, program: Program, value: int, degrees: Sequence[int]) -> list[int]:
        """Append the sketches of several degrees of `value`; return the indices of their values."""

    def apply_degrees(self, X: Array, degrees: Sequence[int] | None = None) -> Array:
        """Sketch several tensor powers x^{⊗j}, j ≤ p, at once; inner products for degree j approximate ⟨x, y⟩^j.

        Parameters
        ----------
        X : array of shape (…, d)
        degrees : sequence of int, optional
            The degrees j. By default all degrees from 0 (from 1 for a PowerSketch) to p.

        Returns
        -------
        array of shape (…, len(degrees), n_components)

        Notes
        -----
        In a PolySketch low degrees also pass through the whole tree: at p = 8 the error of degree 1 is two thirds of
        the error of degree 8. If degree 0 or 1 has a large weight, treat it separately: degree 0 is the constant 1,
        degree 1 is x itself.
        """
        owner = f"{type(self).__name__}.apply_degrees"
        allowed = range(self.lowest, self.degree + 1)
        rule = f"a sequence of one or more ints from {allowed[0]} to {allowed[-1]}"
        wanted = allowed if degrees is None else degrees
        if not isinstance(wanted, Iterable):
            raise TypeError(message(owner, "degrees", rule, degrees))
        chosen = tuple(check_int(j, "degrees", owner, minimum=allowed[0], maximum=allowed[-1]) for j in wanted)
        if not chosen:
            raise ValueError(message(owner, "degrees", rule, degrees))
        (X,) = check_rows((X,), self.factors[:1], owner)

        def build() -> Program:
            program = Program(self.factors[:1])
            for value in self.emit_degrees(program, program.load(), chosen):
                program.output(value)
            return program

        out = run(self._cached(("degrees", chosen), build), (X,))
        return _array.namespace(out).reshape(out, (*out.shape[:-1], len(chosen), self.n_components))


class Composition(Operator):
    """The operator x ↦ outer(inner(x)), created by ``outer @ inner``."""

    def __init__(self, outer: Operator, inner: Operator):
        self.outer, self.inner = outer, inner
        self.factors, self.n_components = inner.factors, outer.n_components

    def emit(self, program: Program, *values: int) -> int:
        """Append the inner operator, then the outer one."""
        return self.outer.emit(program, self.inner.emit(program, *values))


class DirectSum(Operator):
    """The block-diagonal operator x₁ ⊕ x₂ ⊕ … ↦ A₁x₁ ⊕ A₂x₂ ⊕ …, created by :func:`direct_sum`."""

    def __init__(self, *operators: Operator):
        self.operators = operators
        self.factors = (sum(operator.factors[0] for operator in operators),)
        self.n_components = sum(operator.n_components for operator in operators)

    def emit(self, program: Program, *values: int) -> int:
        """Append the slices, the operators and the concatenation of their results."""
        (value,) = values
        parts, start = [], 0
        for operator in self.operators:
            size = operator.factors[0]
            parts.append(operator.emit(program, program.slice(value, start, size)))
            start += size
        return program.concatenate(parts)


def direct_sum(*operators: Operator) -> Operator:
    """Return the block-diagonal operator whose blocks act on consecutive slices of the features.

    Parameters
    ----------
    *operators : operators of degree 1
        Sparse rows are converted to dense rows, in batches, before they are split.

    Returns
    -------
    Operator
        Takes d₁ + d₂ + … features and has m₁ + m₂ + … components.

    Examples
    --------
    >>> from ntkit.sketches import CountSketch, SRHT, direct_sum
    >>> both = direct_sum(SRHT(4, 2).sample(0), CountSketch(3, 2).sample(1))
    >>> both
    DirectSum(7 → 4)
    >>> bool(both.matrix()[:2, 4:].any())
    False
    """
    for operator in operators:
        if not isinstance(operator, Operator) or operator.degree != 1:
            rule = "operators on vectors (degree 1), such as SRHT(…).sample(rng)"
            raise TypeError(message("direct_sum", "operators", rule, operator))
    if not operators:
        raise ValueError(message("direct_sum", "operators", "at least one operator", operators))
    return DirectSum(*operators)


def check_rows(X: Sequence[Any], factors: Sequence[int], owner: str, name: str = "X") -> tuple[Array, ...]:
    """Return the inputs as real arrays whose last axes match the factors: one array per factor, or one for all."""
    if len(X) not in (1, len(factors)):
        wanted = "one array" if len(factors) == 1 else f"one array, or {len(factors)} arrays, one for each factor"
        raise TypeError(f"{owner} takes {wanted}. Got {len(X)}.")
    if len(X) == 1 and len(set(factors)) > 1:
        raise TypeError(f"{owner} needs {len(factors)} arrays: its factors have different sizes {tuple(factors)}.")
    arrays = tuple(_check_features(x, d, owner, name) for x, d in zip(X, factors, strict=False))
    first = arrays[0]
    for x in arrays[1:]:
        check_same_library(first, x, owner)
        if x.shape[:-1] != first.shape[:-1]:
            shapes = f"{tuple(first.shape)} and {tuple(x.shape)}"
            raise ValueError(f"All inputs of {owner} must have equal leading axes. Got shapes {shapes}.")
    return arrays


def _check_features(x: Any, n_features: int, owner: str, name: str) -> Array:
    x = real_array(x, name, owner, sparse=True, canonical=False)  # a linear map sums duplicate entries anyway
    if x.ndim == 0 or x.shape[-1] != n_features:
        what = "features" if name == "X" else "components"
        raise ValueError(message(owner, name, f"an array with {n_features} {what} on its last axis", x))
    return x
