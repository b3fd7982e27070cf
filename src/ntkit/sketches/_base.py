"""Distributions, operators, their compositions and direct sums; which interpreter runs a program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from math import prod
from typing import Any, ClassVar, TypeVar

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import row_batches
from ntkit._random import RandomState, keyed, seed_sequence
from ntkit._validation import check_int, check_same_library, describe, message, real_array
from ntkit.sketches._program import Dense, Norm, Program

AnyOperator = TypeVar("AnyOperator", bound="Operator")
# made anew where an operator is unpickled
_CACHED = ("_power", "_tensor", "_programs", "_diagonal", "_diagonals", "_weights", "_in_order")
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
            Equal seeds give equal operators; different laws draw independently even from equal seeds.
        """

    def _seed(self, rng: RandomState) -> np.random.SeedSequence:
        """Seed of this law: keyed by its name, so that one int may seed several."""
        name = type(self).__name__
        return keyed(seed_sequence(rng, owner=f"{name}.sample", name="rng"), name)

    def _check_sizes(self, *names: str, maximum: int | None = None) -> None:
        """Make attributes ints ≥ 1, or raise."""
        for name in names:
            size = check_int(getattr(self, name), name, type(self).__name__, minimum=1, maximum=maximum)
            object.__setattr__(self, name, size)


class Operator(ABC):
    """A drawn linear map from ℝ^{d₁} ⊗ … ⊗ ℝ^{d_p} to ℝ^m.

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

    def matrix(self) -> np.ndarray:
        """Explicit matrix of shape (n_components, d₁⋯d_p), in the order of ``numpy.kron``; for small sizes."""
        size = prod(self.factors)
        if size * max(self.n_components, *self.factors) > _LARGEST_MATRIX:
            raise ValueError(
                f"{type(self).__name__}.matrix() is for small sizes: {self.n_components} × {size} entries, applied to "
                f"{size} unit vectors, pass the limit of {_LARGEST_MATRIX} numbers. Use apply(), which never forms it."
            )
        index = np.unravel_index(np.arange(size), self.factors)
        return self.apply(*(np.eye(d)[i] for d, i in zip(self.factors, index, strict=True))).T

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
        if isinstance(self, ProgramOperator) and isinstance(other, ProgramOperator):
            return FusedComposition(self, other)
        return Composition(self, other)

    def __repr__(self) -> str:
        d, p = self.factors[0], self.degree
        equal = p > 1 and len(set(self.factors)) == 1
        sizes = f"{d}^{p}" if equal else " × ".join(map(str, self.factors))
        return f"{type(self).__name__}({sizes} → {self.n_components})"


class ProgramOperator(Operator):
    """An operator made of the steps of :mod:`ntkit.sketches._program`."""

    @abstractmethod
    def emit(self, program: Program, *values: int) -> int:
        """Append this map of the tensor product of `values` to a program; return the number of its value."""

    def apply(self, *X: Array) -> Array:
        """Map rows; see :meth:`Operator.apply`."""
        X = check_rows(X, self.factors, f"{type(self).__name__}.apply")
        return execute(self._power if len(X) == 1 else self._tensor, X)

    def program(self, **load: Any) -> Program:
        """The map of x ⊗ … ⊗ x, `load` as in :meth:`Program.load`."""
        program = Program((self.factors[0] - ("constant" in load),))
        program.output(self.emit(program, *[program.load(0, **load)] * self.degree))
        return program

    def of_vectors(self, *vectors: np.ndarray) -> np.ndarray:
        """The map of one tensor product of float64 vectors, without compiled code."""
        from ntkit.sketches import _agnostic

        return _agnostic.execute(self._tensor, [vector[None] for vector in vectors])[0][0]

    @cached_property
    def _power(self) -> Program:
        return self.program()

    @cached_property
    def _tensor(self) -> Program:
        program = Program(self.factors)
        program.output(self.emit(program, *(program.load(k) for k in range(self.degree))))
        return program

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.copy().items() if name not in _CACHED}


class DegreesOperator(ProgramOperator):
    """An operator on x ⊗ … ⊗ x that also gives lower degrees."""

    lowest: ClassVar[int]
    """The lowest of them."""

    @abstractmethod
    def emit_degrees(self, program: Program, value: int, degrees: Sequence[int]) -> list[int]:
        """Append the sketches of several degrees to a program; return the numbers of their values."""

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
        if chosen not in self._programs:
            program = Program(self.factors[:1])
            for value in self.emit_degrees(program, program.load(), chosen):
                program.output(value)
            self._programs[chosen] = program
        out = execute(self._programs[chosen], (X,))
        return _array.namespace(out).reshape(out, (*out.shape[:-1], len(chosen), self.n_components))

    @cached_property
    def _programs(self) -> dict[tuple[int, ...], Program]:
        return {}


class Composition(Operator):
    """The operator x ↦ outer(inner(x)), written ``outer @ inner``."""

    def __init__(self, outer: Operator, inner: Operator):
        self.outer, self.inner = outer, inner
        self.factors, self.n_components = inner.factors, outer.n_components

    def apply(self, *X: Array) -> Array:
        """Map rows; see :meth:`Operator.apply`."""
        return self.outer.apply(self.inner.apply(*X))


class FusedComposition(ProgramOperator, Composition):
    """A composition in one pass over the rows."""

    outer: ProgramOperator
    inner: ProgramOperator

    def emit(self, program: Program, *values: int) -> int:
        """Append inner, then outer."""
        return self.outer.emit(program, self.inner.emit(program, *values))


class DirectSum(Operator):
    """The block-diagonal operator x₁ ⊕ x₂ ⊕ … ↦ A₁x₁ ⊕ A₂x₂ ⊕ …; made by :func:`direct_sum`."""

    def __init__(self, *operators: Operator):
        self.operators = operators
        self.factors = (sum(operator.factors[0] for operator in operators),)
        self.n_components = sum(operator.n_components for operator in operators)

    def apply(self, *X: Array) -> Array:
        """Map rows; see :meth:`Operator.apply`."""
        (x,) = check_rows(X, self.factors, f"{type(self).__name__}.apply")
        parts = [operator.apply(x[..., columns]) for operator, columns in _columns(self.operators)]
        return _array.namespace(*parts).concat(parts, axis=-1)


class FusedDirectSum(ProgramOperator, DirectSum):
    """A direct sum in one pass over the rows."""

    operators: tuple[ProgramOperator, ...]

    def emit(self, program: Program, *values: int) -> int:
        """Append slices, the operators and a concatenation."""
        (value,) = values
        parts = []
        for operator, columns in _columns(self.operators):
            part = program.slice(value, columns.start, columns.stop - columns.start)
            parts.append(operator.emit(program, part))
        return program.concatenate(parts)


def _columns(operators: Sequence[AnyOperator]) -> Iterator[tuple[AnyOperator, slice]]:
    """Each operator with its slice of the features."""
    stop = 0
    for operator in operators:
        start, stop = stop, stop + operator.factors[0]
        yield operator, slice(start, stop)


def direct_sum(*operators: Operator) -> Operator:
    """Block-diagonal operator: each one acts on its own slice of the features.

    Parameters
    ----------
    *operators : operators of degree 1
        Sparse rows are made dense, W at a time, before they are split.

    Returns
    -------
    Operator
        On d₁ + d₂ + … features, with m₁ + m₂ + … components.

    Examples
    --------
    >>> from ntkit.sketches import CountSketch, SRHT, direct_sum
    >>> both = direct_sum(SRHT(4, 2).sample(0), CountSketch(3, 2).sample(1))
    >>> both
    FusedDirectSum(7 → 4)
    >>> bool(both.matrix()[:2, 4:].any())
    False
    """
    for operator in operators:
        if not isinstance(operator, Operator) or operator.degree != 1:
            rule = "operators on vectors (of degree 1), such as SRHT(…).sample(rng)"
            raise TypeError(message("direct_sum", "operators", rule, operator))
    if not operators:
        raise ValueError(message("direct_sum", "operators", "at least one operator", operators))
    fused = [operator for operator in operators if isinstance(operator, ProgramOperator)]
    return FusedDirectSum(*fused) if len(fused) == len(operators) else DirectSum(*operators)


def check_rows(X: Sequence[Any], factors: Sequence[int], owner: str) -> tuple[Array, ...]:
    """Return the inputs as real arrays whose last axes fit the factors: one per factor, or one for all."""
    if len(X) not in (1, len(factors)):
        wanted = "one array" if len(factors) == 1 else f"one array or {len(factors)}, one for each factor"
        raise TypeError(f"{owner} takes {wanted}. Got {len(X)}.")
    if len(X) == 1 and len(set(factors)) > 1:
        raise TypeError(f"{owner} needs {len(factors)} arrays: its factors have different sizes {tuple(factors)}.")
    arrays = tuple(_check_features(x, d, owner) for x, d in zip(X, factors, strict=False))
    first = arrays[0]
    for x in arrays[1:]:
        check_same_library(first, x, owner)
        if x.shape[:-1] != first.shape[:-1]:
            shapes = f"{tuple(first.shape)} and {tuple(x.shape)}"
            raise ValueError(f"All inputs of {owner} must have equal leading axes. Got shapes {shapes}.")
    return arrays


def _check_features(x: Any, n_features: int, owner: str) -> Array:
    x = real_array(x, "X", owner, sparse=True, canonical=False)  # a linear map adds duplicates up by itself
    if x.ndim == 0 or x.shape[-1] != n_features:
        raise ValueError(message(owner, "X", f"an array with {n_features} features on its last axis", x))
    return x


def execute(program: Program, inputs: Sequence[Array], *, batch_size: int | None = None) -> Array:
    """Run a program on arrays of shape (…, d_i); return the outputs side by side, (…, n_outputs).

    `batch_size` bounds the rows whose intermediate results are held; the compiled kernels hold few in any case.
    """
    first = inputs[0]
    leading = tuple(first.shape[:-1])
    if _array.is_sparse(first):
        rows = [x.reshape(-1, x.shape[-1]).tocsr() for x in inputs]
        if any(isinstance(step, Norm) for step in program.steps):
            rows = [_without_duplicates(x) for x in rows]
        dtype = np.result_type(*(x.dtype for x in rows))
        return _on_host(program, rows, dtype, sparse=True).reshape(*leading, program.n_outputs)
    xp: Any = _array.namespace(*inputs)
    flat = [xp.reshape(x, (-1, x.shape[-1])) for x in inputs]
    dtype = _array.result_dtype(*inputs)
    return xp.reshape(_execute_rows(program, flat, dtype, batch_size), (*leading, program.n_outputs))


def _without_duplicates(x: Any) -> Any:
    """Sparse rows whose entries are all at different places, as norms need them."""
    if x.has_canonical_format:
        return x
    x = x.copy()
    x.sum_duplicates()
    return x


def _execute_rows(program: Program, inputs: list[Array], dtype: Any, batch_size: int | None) -> Array:
    first = inputs[0]
    xp: Any = _array.namespace(first)
    differentiable = _array.is_torch(first) and _wants_gradient(inputs)
    if _array.has_triton(first) and not differentiable:
        from ntkit.sketches import _products_triton, _triton

        inputs = [x.detach().to(dtype) for x in inputs]
        if dtype in (xp.bfloat16, xp.float16) and _products_triton.suits(program):
            return _products_triton.execute(program, inputs, batch_size)
        return _triton.execute(program, inputs, batch_size)
    half = dtype not in (xp.float32, xp.float64)  # 16-bit numbers are computed in float32 and rounded at the end
    wide = xp.float32 if half else dtype
    if _array.is_torch(first) and half:
        inputs = [xp.astype(x, wide, copy=False) for x in inputs]
    views = [] if differentiable else [view for view in map(_array.host_view, inputs) if view is not None]
    if views:
        # Other types are converted in the compiled code's own row batches.
        numbers = np.float64 if wide == xp.float64 else np.float32
        out = _array.like(_on_host(program, views, numbers, sparse=False), first)
    else:
        inputs = [xp.astype(x, wide, copy=False) for x in inputs]
        from ntkit.sketches import _agnostic

        bytes_per_row = 8 * 4 * max(program.sizes)
        batches = row_batches(first.shape[0], bytes_per_row, batch_size=batch_size, like=first)
        parts = [_agnostic.execute(program, [x[b, :] for x in inputs]) for b in list(batches) or [slice(0, 0)]]
        out = xp.concat([xp.concat(part, axis=-1) for part in parts], axis=0)
    return xp.astype(out, dtype, copy=False)


def _wants_gradient(inputs: Sequence[Any]) -> bool:
    """Whether torch is to differentiate, in any of its modes, or to map over the inputs."""
    import torch
    from torch.autograd.forward_ad import unpack_dual

    is_wrapped = getattr(torch._C._functorch, "is_functorch_wrapped_tensor", None)  # torch.func; no public way to ask
    if is_wrapped is not None and any(map(is_wrapped, inputs)):
        return True
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        return True
    return any(unpack_dual(x).tangent is not None for x in inputs)


def _on_host(program: Program, inputs: list[Any], dtype: Any, *, sparse: bool) -> np.ndarray:
    from ntkit.sketches import _numba, _stages

    key = (np.dtype(dtype), sparse)
    out = _numba.empty(inputs[0].shape[0], program.n_outputs, dtype)
    if any(isinstance(step, Dense) for step in program.steps):
        if key not in program.cache:
            program.cache[key] = _stages.plan(program, dtype, sparse=sparse)
        _stages.execute(program, program.cache[key], inputs, out, sparse=sparse)
    else:
        if key not in program.cache:
            program.cache[key] = _numba.translate(program, dtype, sparse=sparse)
        _numba.execute(program, program.cache[key], inputs, out, sparse=sparse)
    return out
