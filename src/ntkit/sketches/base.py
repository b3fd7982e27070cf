"""Distributions, operators, their compositions and direct sums."""

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

_LARGEST_MATRIX = 2**24  # entries that `matrix` will write out


class Distribution(ABC):
    """Law of a random linear map: sizes and structure, no draws."""

    n_components: int

    @abstractmethod
    def sample(self, rng: RandomState = None) -> Operator:
        """Draw an operator.

        Parameters
        ----------
        rng : None, int, numpy Generator, RandomState or SeedSequence
            Equal seeds give equal operators. Different laws, also those of one class with other sizes, draw
            independently even from equal seeds.
        """

    def draw_bytes(self) -> int:
        """Bound for the memory that `sample` takes: signs, rows and nodes, fewer than ten for each degree.

        Nodes take a millisecond each however small they are, in which 2¹⁷ bytes could be filled.
        """
        names = ("n_features", "n_components", "width", "inner_components")
        sizes = [getattr(self, name, None) or 0 for name in names]
        total = sum(sum(size) if isinstance(size, tuple) else size for size in sizes)
        n_nodes = max(getattr(self, "degree", 1), len(getattr(self, "coefficients", ())))
        return n_nodes * max(100 * total, 2**17)

    def _seed(self, rng: RandomState) -> np.random.SeedSequence:
        """Seed of this law: keyed by its name and sizes, so that one int may seed several."""
        name = type(self).__name__
        return keyed(seed_sequence(rng, owner=f"{name}.sample", name="rng"), name, *self._key())

    def _key(self) -> Iterator[int]:
        """What tells laws of one class apart: their whole numbers, as floats may differ in the last bit elsewhere."""
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, int):
                yield int(value)

    def _check_sizes(self, *names: str, maximum: int | None = None) -> None:
        """Make attributes ints ≥ 1, or raise."""
        for name in names:
            size = check_int(getattr(self, name), name, type(self).__name__, minimum=1, maximum=maximum)
            object.__setattr__(self, name, size)


class Operator(ABC):
    """A drawn linear map S from ℝ^{d₁} ⊗ … ⊗ ℝ^{d_p} to ℝ^m, made of the steps of :mod:`ntkit.programs`.

    Attributes
    ----------
    factors : tuple of int
        d₁, …, d_p.
    n_components : int
        m.
    """

    factors: tuple[int, ...]
    n_components: int
    __array_ufunc__ = None  # NumPy must not take an operator for a number

    @property
    def degree(self) -> int:
        """Number p of tensor factors."""
        return len(self.factors)

    @abstractmethod
    def emit(self, program: Program, *values: int) -> int:
        """Append this map of the tensor product of `values` to a program; return the index of its value."""

    def apply(self, *X: Array) -> Array:
        """Map the tensor product of the rows of p arrays, or the p-th tensor power of the rows of one.

        Parameters
        ----------
        *X : arrays of shape (…, d_i)
            p arrays with equal leading axes, or one that stands for all p factors. NumPy arrays and torch tensors
            of any device; SciPy sparse rows. NaN and infinities pass through, as in a matrix product.

        Returns
        -------
        array of shape (…, n_components)
            In the library, on the device and in the dtype of X (float64 for whole numbers).
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
            In the order of ``numpy.kron``.

        Notes
        -----
        Operators on vectors (p = 1) take the time of :meth:`apply`. For p > 1 the result itself has d₁⋯d_p entries per
        row, and S is written out in blocks of columns.

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
        """Explicit matrix of shape (n_components, d₁⋯d_p), in the order of ``numpy.kron``; for small sizes."""
        size = prod(self.factors)
        if size * max(self.n_components, *self.factors) > _LARGEST_MATRIX:
            raise ValueError(
                f"{type(self).__name__}.matrix() is for small sizes: {self.n_components} × {size} entries, applied to "
                f"{size} unit vectors, pass the limit of {_LARGEST_MATRIX} numbers. Use apply(), which never forms it."
            )
        return np.concatenate(list(self._blocks_of_columns())).T

    def as_linear_operator(self) -> LinearOperator:
        """Return this map for SciPy's solvers: a ``LinearOperator`` of shape (n_components, d₁⋯d_p).

        Notes
        -----
        For p > 1 a vector of the tensor space need not be a tensor product; it costs d₁⋯d_{p−1} times the time of one
        that is.

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
        """S x for rows of shape (d₁⋯d_p,): the last factor as rows, unit vectors for the others, summed."""
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
        """The columns of S, some at a time, as rows."""
        for _, units in self._unit_vectors(self.factors):
            yield self.apply(*units)

    def _unit_vectors(self, sizes: tuple[int, ...]) -> Iterator[tuple[int, list[np.ndarray]]]:
        """All tensor products of unit vectors, in blocks: index of the first, and rows for each factor."""
        for rows in row_batches(prod(sizes), 8 * (sum(self.factors) + 2 * self.n_components)):
            index = np.unravel_index(np.arange(rows.start, rows.stop), sizes)
            yield rows.start, [(np.arange(d) == i[:, None]).astype(float) for d, i in zip(sizes, index, strict=True)]

    def __matmul__(self, other: object) -> Operator:
        if not isinstance(other, Operator):
            raise TypeError(
                f"outer @ inner composes two operators. Got {describe(other)} on the right. To map rows use apply(X)."
            )
        if self.factors != (other.n_components,):
            raise ValueError(
                f"outer @ inner needs an outer operator on the {other.n_components} components of the inner one. "
                f"Got {self!r} and {other!r}."
            )
        return Composition(self, other)

    def __repr__(self) -> str:
        d, p = self.factors[0], self.degree
        equal = p > 1 and len(set(self.factors)) == 1
        sizes = f"{d}^{p}" if equal else " × ".join(map(str, self.factors))
        return f"{type(self).__name__}({sizes} → {self.n_components})"

    def of_vectors(self, *vectors: np.ndarray) -> np.ndarray:
        """The map of one tensor product of float64 vectors, without compiled code."""
        return array_api.evaluate(self._program(self.degree), [vector[None] for vector in vectors])[0][0]

    def _program(self, n_inputs: int) -> Program:
        """The map of the tensor product of its inputs, or of the tensor power of a single one."""

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
    """An operator on x ⊗ … ⊗ x that also gives lower degrees."""

    lowest: ClassVar[int]
    """The lowest of them."""

    @abstractmethod
    def emit_degrees(self, program: Program, value: int, degrees: Sequence[int]) -> list[int]:
        """Append the sketches of several degrees to a program; return the indices of their values."""

    def apply_degrees(self, X: Array, degrees: Sequence[int] | None = None) -> Array:
        """Sketch several degrees j ≤ p at once; inner products of the results for j approximate ⟨x, y⟩^j.

        Parameters
        ----------
        X : array of shape (…, d)
        degrees : sequence of int, optional
            The j wanted; by default all, from 0 (1 for a PowerSketch) to p.

        Returns
        -------
        array of shape (…, len(degrees), n_components)

        Notes
        -----
        In a PolySketch the low degrees go through the nodes of the whole tree too: at p = 8 the error of degree 1 is
        two thirds of that of degree 8. If one of them carries much weight, take it apart: degree 0 is the constant 1,
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
    """The operator x ↦ outer(inner(x)), written ``outer @ inner``."""

    def __init__(self, outer: Operator, inner: Operator):
        self.outer, self.inner = outer, inner
        self.factors, self.n_components = inner.factors, outer.n_components

    def emit(self, program: Program, *values: int) -> int:
        """Append inner, then outer."""
        return self.outer.emit(program, self.inner.emit(program, *values))


class DirectSum(Operator):
    """The block-diagonal operator x₁ ⊕ x₂ ⊕ … ↦ A₁x₁ ⊕ A₂x₂ ⊕ …; made by :func:`direct_sum`."""

    def __init__(self, *operators: Operator):
        self.operators = operators
        self.factors = (sum(operator.factors[0] for operator in operators),)
        self.n_components = sum(operator.n_components for operator in operators)

    def emit(self, program: Program, *values: int) -> int:
        """Append slices, the operators and a concatenation."""
        (value,) = values
        parts, start = [], 0
        for operator in self.operators:
            size = operator.factors[0]
            parts.append(operator.emit(program, program.slice(value, start, size)))
            start += size
        return program.concatenate(parts)


def direct_sum(*operators: Operator) -> Operator:
    """Block-diagonal operator: each one acts on its own slice of the features.

    Parameters
    ----------
    *operators : operators of degree 1
        Sparse rows are made dense, some rows at a time, before they are split.

    Returns
    -------
    Operator
        On d₁ + d₂ + … features, with m₁ + m₂ + … components.

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
            rule = "operators on vectors (of degree 1), such as SRHT(…).sample(rng)"
            raise TypeError(message("direct_sum", "operators", rule, operator))
    if not operators:
        raise ValueError(message("direct_sum", "operators", "at least one operator", operators))
    return DirectSum(*operators)


def check_rows(X: Sequence[Any], factors: Sequence[int], owner: str, name: str = "X") -> tuple[Array, ...]:
    """Return the inputs as real arrays whose last axes fit the factors: one per factor, or one for all."""
    if len(X) not in (1, len(factors)):
        wanted = "one array" if len(factors) == 1 else f"one array or {len(factors)}, one for each factor"
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
    x = real_array(x, name, owner, sparse=True, canonical=False)  # a linear map adds duplicates up by itself
    if x.ndim == 0 or x.shape[-1] != n_features:
        what = "features" if name == "X" else "components"
        raise ValueError(message(owner, name, f"an array with {n_features} {what} on its last axis", x))
    return x
