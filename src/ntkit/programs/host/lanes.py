"""Vectors of W rows for numba: one cache line holds one coordinate of W consecutive rows (16 float32, 8 float64).

In this layout a butterfly of the Hadamard transform is one addition and one subtraction of whole vectors at any
stride, and a gather of arbitrary coordinates reads whole cache lines, without shuffles or scalar loads. Only loading
and storing rows transposes, in tiles of W × W. Scratch memory is an array of shape (vectors, W), 64-byte aligned.

The intrinsics emit LLVM vector instructions explicitly, because LLVM's vectorizer cannot prove that the strided reads
and writes of a butterfly do not overlap.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LINE = 64  # bytes of a cache line, which is one vector
_INDEX = ir.IntType(32)


def lanes(dtype: Any) -> int:
    """Return the number W of rows per vector."""
    return LINE // np.dtype(dtype).itemsize


def aligned(n_vectors: int, dtype: Any) -> np.ndarray:
    """Allocate uninitialized scratch memory of shape (n_vectors, W) that starts on a cache line."""
    width = lanes(dtype)
    raw = np.empty((n_vectors + 1) * width, dtype)
    start = -raw.ctypes.data % LINE // raw.itemsize
    return raw[start : start + n_vectors * width].reshape(n_vectors, width)


class _VectorBuilder:
    """Emits vector instructions for one array type."""

    def __init__(self, context, builder, array_type, array):
        self.builder = builder
        self.data = context.make_array(array_type)(context, builder, array).data
        itemsize = array_type.dtype.bitwidth // 8
        self.width = LINE // itemsize
        self.vector = ir.VectorType(context.get_data_type(array_type.dtype), self.width)
        self.align = LINE if array_type.ndim == 2 else itemsize  # scratch memory is aligned, the caller's rows may not

    def pointer(self, offset):
        return self.builder.bitcast(self.builder.gep(self.data, [offset]), self.vector.as_pointer())

    def load(self, offset):
        value = self.builder.load(self.pointer(offset))
        value.align = self.align
        return value

    def store(self, value, offset):
        self.builder.store(value, self.pointer(offset)).align = self.align

    def at(self, index, stride=None, times=0):
        """Return the offset, in numbers, of vector `index` + `times` · `stride`."""
        if times:
            index = self.builder.add(index, self.builder.mul(stride, ir.Constant(stride.type, times)))
        return self.builder.mul(index, ir.Constant(index.type, self.width))

    def splat(self, scalar):
        """Return the vector with `scalar` in every lane."""
        undefined = ir.Constant(self.vector, ir.Undefined)
        one = self.builder.insert_element(undefined, scalar, ir.Constant(_INDEX, 0))
        return self.shuffle(one, undefined, [0] * self.width)

    def shuffle(self, a, b, lanes):
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_INDEX, self.width), lanes))


def _butterflies(builder, values):
    """Emit the Hadamard transform across len(values) vectors."""
    h = 1
    while h < len(values):
        for i in range(len(values)):
            if not i & h:
                a, b = values[i], values[i + h]
                values[i], values[i + h] = builder.fadd(a, b), builder.fsub(a, b)
        h *= 2
    return values


def _transposed(emitter, values):
    """Transpose W vectors, the rows of a matrix, by swapping blocks of 1, 2, 4, … across the diagonal."""
    width = len(values)
    s = 1
    while s < width:
        upper = [width + j - s if j & s else j for j in range(width)]
        lower = [width + j if j & s else j + s for j in range(width)]
        for i in range(width):
            if not i & s:
                a, b = values[i], values[i + s]
                values[i], values[i + s] = emitter.shuffle(a, b, upper), emitter.shuffle(a, b, lower)
        s *= 2
    return values


@intrinsic(prefer_literal=True)
def butterflies(typing, scratch, source, target, stride, radix):
    """Transform the `radix` vectors source, source + stride, … into target, target + stride, …."""
    count = radix.literal_value

    def emit(context, builder, _, arguments):
        array, source, target, stride, _ = arguments
        v = _VectorBuilder(context, builder, scratch, array)
        values = [v.load(v.at(source, stride, k)) for k in range(count)]
        for k, value in enumerate(_butterflies(builder, values)):
            v.store(value, v.at(target, stride, k))
        return context.get_dummy_value()

    return types.void(scratch, types.intp, types.intp, types.intp, radix), emit


@intrinsic(prefer_literal=True)
def weighted_butterflies(typing, scratch, source, diagonal, first, target, stride, radix):
    """As :func:`butterflies`, after multiplying the vectors by diagonal[first], diagonal[first + stride], …."""
    count = radix.literal_value

    def emit(context, builder, _, arguments):
        array, source, weights, first, target, stride, _ = arguments
        v = _VectorBuilder(context, builder, scratch, array)
        weights = context.make_array(diagonal)(context, builder, weights).data
        values = []
        for k in range(count):
            at = builder.add(first, builder.mul(stride, ir.Constant(stride.type, k)))
            weight = v.splat(builder.load(builder.gep(weights, [at])))
            values.append(builder.fmul(v.load(v.at(source, stride, k)), weight))
        for k, value in enumerate(_butterflies(builder, values)):
            v.store(value, v.at(target, stride, k))
        return context.get_dummy_value()

    signature = types.void(scratch, types.intp, diagonal, types.intp, types.intp, types.intp, radix)
    return signature, emit


def _vectorized(formula):
    """Return the intrinsic f(scratch, target, source, weight): scratch[target] = formula(scratch[source], weight).

    `formula` receives the builder, the two vectors and a function that loads scratch[target].
    """

    @intrinsic
    def operation(typing, scratch, target, source, weight):
        def emit(context, builder, _, arguments):
            array, target, source, weight = arguments
            v = _VectorBuilder(context, builder, scratch, array)
            result = formula(builder, v.load(v.at(source)), v.splat(weight), lambda: v.load(v.at(target)))
            v.store(result, v.at(target))
            return context.get_dummy_value()

        return types.void(scratch, types.intp, types.intp, scratch.dtype), emit

    return operation


def _rectified(builder, x, weight, _):
    zero = ir.Constant(x.type, None)
    return builder.fmul(builder.select(builder.fcmp_unordered(">", x, zero), x, zero), weight)  # NaN stays NaN


def _stepped(builder, x, weight, _):
    zero = ir.Constant(x.type, None)
    return builder.select(builder.fcmp_ordered(">", x, zero), weight, zero)


copy = _vectorized(lambda builder, x, weight, _: builder.fmul(x, weight))
accumulate = _vectorized(lambda builder, x, weight, old: builder.fadd(old(), builder.fmul(x, weight)))
rectify = _vectorized(_rectified)
step_at = _vectorized(_stepped)


@intrinsic
def multiply(typing, scratch, target, a, b, weight):
    """scratch[target] = scratch[a] · (weight · scratch[b])."""

    def emit(context, builder, _, arguments):
        array, target, a, b, weight = arguments
        v = _VectorBuilder(context, builder, scratch, array)
        factor = builder.fmul(v.load(v.at(b)), v.splat(weight))
        v.store(builder.fmul(v.load(v.at(a)), factor), v.at(target))
        return context.get_dummy_value()

    return types.void(scratch, types.intp, types.intp, types.intp, scratch.dtype), emit


@intrinsic(prefer_literal=True)
def largest(typing, scratch, target, source, count):
    """scratch[target] = max(scratch[target], |scratch[source + k]|) over `count` vectors."""
    number = count.literal_value

    def emit(context, builder, _, arguments):
        array, target, source, _ = arguments
        v = _VectorBuilder(context, builder, scratch, array)
        one, zero = ir.Constant(source.type, 1), ir.Constant(v.vector, None)
        values = [v.load(v.at(source, one, k)) for k in range(number)]
        found = [v.load(v.at(target)), *values, *(builder.fsub(zero, value) for value in values)]
        while len(found) > 1:
            a, b = found.pop(0), found.pop(0)
            found.append(builder.select(builder.fcmp_unordered(">", a, b), a, b))
        v.store(found[0], v.at(target))
        return context.get_dummy_value()

    return types.void(scratch, types.intp, types.intp, count), emit


@intrinsic(prefer_literal=True)
def add_squares(typing, scratch, target, source, factor, count):
    """scratch[target] += Σ (scratch[source + k] · scratch[factor])² over `count` vectors."""
    number = count.literal_value

    def emit(context, builder, _, arguments):
        array, target, source, factor, _ = arguments
        v = _VectorBuilder(context, builder, scratch, array)
        one = ir.Constant(source.type, 1)
        factor = v.load(v.at(factor))
        terms = [builder.fmul(v.load(v.at(source, one, k)), factor) for k in range(number)]
        terms = [builder.fmul(term, term) for term in terms]
        while len(terms) > 1:  # sum in a tree: a chain of dependent additions would dominate the time
            terms.append(builder.fadd(terms.pop(0), terms.pop(0)))
        v.store(builder.fadd(v.load(v.at(target)), terms[0]), v.at(target))
        return context.get_dummy_value()

    return types.void(scratch, types.intp, types.intp, types.intp, count), emit


@intrinsic
def load_tile(typing, rows, start, stride, scratch, target, weight):
    """Transpose W × W numbers of the flat array `rows`, whose row k begins at start + k · stride, into W vectors."""

    def emit(context, builder, _, arguments):
        source, start, stride, array, target, weight = arguments
        r = _VectorBuilder(context, builder, rows, source)
        v = _VectorBuilder(context, builder, scratch, array)
        offsets = [builder.add(start, builder.mul(stride, ir.Constant(stride.type, k))) for k in range(v.width)]
        weight = v.splat(weight)
        values = [builder.fmul(r.load(offset), weight) for offset in offsets]
        one = ir.Constant(target.type, 1)
        for k, value in enumerate(_transposed(v, values)):
            v.store(value, v.at(target, one, k))
        return context.get_dummy_value()

    return types.void(rows, types.intp, types.intp, scratch, types.intp, scratch.dtype), emit


@intrinsic
def store_tile(typing, scratch, source, rows, start, stride):
    """Transpose W vectors into W × W numbers of the flat array `rows`, whose row k begins at start + k · stride."""

    def emit(context, builder, _, arguments):
        array, source, target, start, stride = arguments
        v = _VectorBuilder(context, builder, scratch, array)
        one = ir.Constant(source.type, 1)
        values = [v.load(v.at(source, one, k)) for k in range(v.width)]
        _store_transposed(v, values, _VectorBuilder(context, builder, rows, target), start, stride)
        return context.get_dummy_value()

    return types.void(scratch, types.intp, rows, types.intp, types.intp), emit


@intrinsic
def gather_tile(typing, scratch, source, index, first, weights, w, rows, start, stride):
    """As :func:`store_tile`, for vectors source + index[first + k] times weights[w + k], which stay in registers."""

    def emit(context, builder, _, arguments):
        array, source, chosen, first, factors, w, target, start, stride = arguments
        v = _VectorBuilder(context, builder, scratch, array)
        numbers = context.make_array(weights)(context, builder, factors).data
        values = []
        for k, place in enumerate(_chosen(context, builder, index, chosen, first, v.width)):
            weight = builder.load(builder.gep(numbers, [builder.add(w, ir.Constant(w.type, k))]))
            values.append(builder.fmul(v.load(v.at(builder.add(source, place))), v.splat(weight)))
        _store_transposed(v, values, _VectorBuilder(context, builder, rows, target), start, stride)
        return context.get_dummy_value()

    n = types.intp
    return types.void(scratch, n, index, n, weights, n, rows, n, n), emit


@intrinsic
def multiply_tile(typing, scratch, a, b, index, a_first, b_first, weight, rows, start, stride):
    """As :func:`store_tile`, for weight · (vector a + index[a_first + k]) · (vector b + index[b_first + k])."""

    def emit(context, builder, _, arguments):
        array, a, b, chosen, a_first, b_first, weight, target, start, stride = arguments
        v = _VectorBuilder(context, builder, scratch, array)
        weight = v.splat(weight)
        a_rows = _chosen(context, builder, index, chosen, a_first, v.width)
        b_rows = _chosen(context, builder, index, chosen, b_first, v.width)
        values = []
        for i, j in zip(a_rows, b_rows, strict=True):
            product = builder.fmul(v.load(v.at(builder.add(a, i))), v.load(v.at(builder.add(b, j))))
            values.append(builder.fmul(product, weight))
        _store_transposed(v, values, _VectorBuilder(context, builder, rows, target), start, stride)
        return context.get_dummy_value()

    n = types.intp
    return types.void(scratch, n, n, index, n, n, scratch.dtype, rows, n, n), emit


def _chosen(context, builder, array_type, array, first, count):
    """Load entries first, …, first + count − 1 of an integer array."""
    data = context.make_array(array_type)(context, builder, array).data
    places = (builder.add(first, ir.Constant(first.type, k)) for k in range(count))
    return [builder.sext(builder.load(builder.gep(data, [place])), first.type) for place in places]


def _store_transposed(emitter, values, rows, start, stride):
    builder = emitter.builder
    for k, value in enumerate(_transposed(emitter, values)):
        rows.store(value, builder.add(start, builder.mul(stride, ir.Constant(stride.type, k))))


@intrinsic
def pointer(typing, address):
    """Convert an address to a pointer, for ``numba.carray``."""

    def emit(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.voidptr(types.intp), emit


@intrinsic
def prefetch(typing, array, index):
    """Prefetch the cache line of array[index]."""

    def emit(context, builder, _, arguments):
        data = context.make_array(array)(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        signature = ir.FunctionType(ir.VoidType(), [address.type, _INDEX, _INDEX, _INDEX])
        function = builder.module.declare_intrinsic("llvm.prefetch", [address.type], signature)
        builder.call(function, [address, *(ir.Constant(_INDEX, k) for k in (0, 3, 1))])  # read, keep, data
        return context.get_dummy_value()

    return types.void(array, types.intp), emit
