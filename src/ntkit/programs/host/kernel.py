"""The compiled loop over instructions: W rows at a time pass through all steps in cache.

One compiled function serves every sketch, tree and composition, and allocates nothing per row.
``docs/design/sketches.md`` describes what limits the speed of each step.
"""

from __future__ import annotations

import numba
import numpy as np

from ntkit._compiled import compiled
from ntkit.programs.host.instructions import Operation
from ntkit.programs.host.lanes import (
    accumulate,
    add_squares,
    butterflies,
    copy,
    gather_tile,
    largest,
    load_tile,
    multiply,
    multiply_tile,
    pointer,
    prefetch,
    rectify,
    step_at,
    store_tile,
    weighted_butterflies,
)

LOAD, CONSTANT, HADAMARD, GATHER, PRODUCT, SCATTER, SPREAD, COPY, STORE, NORM, SPARSE_NORM, SCALE, NORMALIZE, RELU = (
    int(operation) for operation in list(Operation)[:-1]
)
BLOCK = 256  # vectors (16 KiB) whose transform stays in the first-level cache
PREFETCHED = 24  # how many nonzeros ahead their draws are prefetched


@compiled
def run(code, floats, ints, scratch, addresses, sizes, strides, indptr, indices, values, out):
    """Run the instructions on every group of W rows; see :data:`ntkit.programs.host.instructions.INSTRUCTION`.

    Dense input k starts at ``addresses[k]``, has ``sizes[k]`` features, and its rows are ``strides[k]`` numbers apart.
    Row i of CSR input k consists of the entries ``indptr[k, i]`` to ``indptr[k, i + 1]`` of `indices` and `values`.
    """
    width = scratch.shape[1]
    n_rows, n_outputs = out.shape
    flat = out.reshape(-1)
    for row in range(0, n_rows, width):
        for step in code:
            operation, target, size, source, second = step.operation, step.target, step.size, step.source, step.second
            f, i = step.floats, step.ints
            at = row * n_outputs + step.column if step.column >= 0 else -1
            if operation == LOAD:
                if len(addresses) > 0:
                    rows = numba.carray(pointer(addresses[source]), n_rows * strides[source], scratch.dtype)
                    start = row * strides[source]
                    _load(rows, start, strides[source], sizes[source], floats[f], scratch, target)
                else:
                    _densify(indptr[source], indices, values, row, sizes[source], floats[f], scratch, target)
                if step.flag:
                    scratch[target + sizes[source]] = floats[f + 1]
            elif operation == CONSTANT:
                for j in range(size):
                    scratch[target + j] = floats[f + j]
            elif operation == HADAMARD:
                scratch[source + step.source_size : source + size] = 0.0
                _hadamard(scratch, source, floats[f : f + size], target, size)
            elif operation == GATHER:
                _gather(scratch, target, source, ints[i : i + size], floats[f : f + size], flat, at, n_outputs)
            elif operation == PRODUCT:
                _multiply(
                    scratch, target, source, second, ints, i, step.second_ints, size, floats[f], flat, at, n_outputs
                )
            elif operation == SCATTER:
                scratch[target : target + size] = 0.0
                for j in range(step.source_size):
                    for k in range(step.count):
                        entry = ints[i + j * step.count + k]
                        accumulate(scratch, target + (entry >> 1), source + j, -floats[f] if entry & 1 else floats[f])
            elif operation == SPREAD:
                scratch[target : target + size] = 0.0
                _spread(indptr[source], indices, values, row, ints, i, step.count, floats[f], scratch, target)
                for k in range(step.count if step.flag else 0):
                    entry = ints[i + step.source_size * step.count + k]
                    scratch[target + (entry >> 1)] += -floats[f + 1] if entry & 1 else floats[f + 1]
            elif operation == COPY:
                for j in range(size):
                    copy(scratch, target + j, source + j, floats[f])
            elif operation == NORM:
                _norm(scratch, source, step.source_size, target, floats[f])
            elif operation == SPARSE_NORM:
                _sparse_norm(indptr[source], values, row, floats[f : f + 3], scratch, target)
            elif operation == SCALE:
                factors = second
                if step.flag:
                    factors = 0
                    _invert(scratch, second, floats[f + 1])
                elif second >= target and second < target + size:  # a single coordinate that is scaled by itself
                    factors = 0
                    copy(scratch, 0, second, 1.0)
                for j in range(size):
                    multiply(scratch, target + j, source + j, factors, floats[f])
            elif operation == NORMALIZE:
                _norm(scratch, source, size, 2, floats[f + 2])
                _invert(scratch, 2, floats[f + 1])
                if second >= 0:
                    multiply(scratch, 0, 0, second, 1.0)
                for j in range(size):
                    multiply(scratch, target + j, source + j, 0, floats[f])
            elif operation == RELU:
                for j in range(size):
                    rectify(scratch, target + j, source + j, floats[f])
            elif operation == STORE:
                _store(scratch, source, size, flat, at, n_outputs)
            else:
                for j in range(size):
                    step_at(scratch, target + j, source + j, floats[f])


@compiled
def _load(rows, start, stride, n_features, scale, scratch, target):
    """Transpose W rows into vectors."""
    width = scratch.shape[1]
    whole = n_features - n_features % width
    for j in range(0, whole, width):
        load_tile(rows, start + j, stride, scratch, target + j, scale)
    for r in range(width):
        for j in range(whole, n_features):
            scratch[target + j, r] = scale * rows[start + r * stride + j]


@compiled
def _densify(indptr, indices, values, row, n_features, scale, scratch, target):
    """Expand W sparse rows into dense vectors."""
    scratch[target : target + n_features] = 0.0
    for r in range(scratch.shape[1]):
        for entry in range(indptr[row + r], indptr[row + r + 1]):
            scratch[target + indices[entry], r] += scale * values[entry]


@compiled
def _spread(indptr, indices, values, row, ints, codes, n_nonzeros, scale, scratch, target):
    """Add each nonzero of W sparse rows, with its sign, to `n_nonzeros` coordinates."""
    last = indptr[row + scratch.shape[1]] - 1
    for r in range(scratch.shape[1]):
        for entry in range(indptr[row + r], indptr[row + r + 1]):
            # The codes of the nonzeros are far apart in memory: each would be a cache miss.
            prefetch(ints, codes + indices[min(entry + PREFETCHED, last)] * n_nonzeros)
            value = scale * values[entry]
            first = codes + indices[entry] * n_nonzeros
            for k in range(n_nonzeros):
                code = ints[first + k]
                scratch[target + (code >> 1), r] += -value if code & 1 else value


@compiled
def _norm(scratch, source, n, target, tiny):
    """Compute the norms across n vectors, lane by lane, as :func:`ntkit.programs.array_api.norm` does.

    Entries are divided by at least `tiny`. Scratch vector 0 holds the largest entry, then its inverse; vector 1 holds
    the sum of squares.
    """
    width = scratch.shape[1]
    whole = n - n % 8
    scratch[:2] = 0.0
    for j in range(source, source + whole, 8):
        largest(scratch, 0, j, 8)
    for j in range(source + whole, source + n):
        largest(scratch, 0, j, 1)
    for r in range(width):
        top = scratch[0, r]
        scratch[target, r] = tiny if top < tiny else top
        scratch[0, r] = 1.0 / scratch[target, r]
    for j in range(source, source + whole, 8):
        add_squares(scratch, 1, j, 0, 8)
    for j in range(source + whole, source + n):
        add_squares(scratch, 1, j, 0, 1)
    for r in range(width):
        scratch[target, r] *= np.sqrt(scratch[1, r])


@compiled
def _sparse_norm(indptr, values, row, numbers, scratch, target):
    """Compute the norms of W sparse rows times numbers[0] with numbers[1] as one more entry; numbers[2] is `tiny`."""
    scale, constant, top = numbers
    for r in range(scratch.shape[1]):
        top = max(numbers[2], abs(constant))
        for entry in range(indptr[row + r], indptr[row + r + 1]):
            size = scale * abs(values[entry])
            if size > top or size != size:  # NaN stays NaN
                top = size
        total = (constant / top) ** 2
        for entry in range(indptr[row + r], indptr[row + r + 1]):
            ratio = scale * values[entry] / top
            total += ratio * ratio
        scratch[target, r] = top * np.sqrt(total)


@compiled
def _invert(scratch, value, floor):
    """Write the inverse of a vector to scratch vector 0, with 0 where the vector is below `floor`."""
    for r in range(scratch.shape[1]):
        c = scratch[value, r]
        scratch[0, r] = 0.0 if c < floor else 1.0 / c


@compiled
def _gather(scratch, target, source, rows, weights, flat, at, stride):
    """Copy the vectors source + rows, times weights, to target, or if at ≥ 0 directly to columns of W rows."""
    width = scratch.shape[1]
    if at < 0:
        for j in range(len(rows)):
            copy(scratch, target + j, source + rows[j], weights[j])
        return
    whole = len(rows) - len(rows) % width
    for j in range(0, whole, width):
        gather_tile(scratch, source, rows, j, weights, j, flat, at + j, stride)
    for j in range(whole, len(rows)):
        copy(scratch, j - whole, source + rows[j], weights[j])
    _store(scratch, 0, len(rows) - whole, flat, at + whole, stride)


@compiled
def _multiply(scratch, target, a, b, ints, a_rows, b_rows, size, scale, flat, at, stride):
    """Write products of vectors of a and b to target, or if at ≥ 0 directly to columns of W rows."""
    width = scratch.shape[1]
    if at < 0:
        for j in range(size):
            multiply(scratch, target + j, a + ints[a_rows + j], b + ints[b_rows + j], scale)
        return
    whole = size - size % width
    for j in range(0, whole, width):
        multiply_tile(scratch, a, b, ints, a_rows + j, b_rows + j, scale, flat, at + j, stride)
    for j in range(whole, size):
        multiply(scratch, j - whole, a + ints[a_rows + j], b + ints[b_rows + j], scale)
    _store(scratch, 0, size - whole, flat, at + whole, stride)


@compiled
def _store(scratch, source, n, flat, start, stride):
    """Transpose n vectors into columns of W rows."""
    width = scratch.shape[1]
    whole = n - n % width
    for j in range(0, whole, width):
        store_tile(scratch, source + j, flat, start + j, stride)
    for r in range(width):
        for j in range(whole, n):
            flat[start + r * stride + j] = scratch[source + j, r]


@compiled
def _hadamard(scratch, source, diagonal, target, n):
    """Compute vectors target, … = H_n (diagonal ⊙ vectors source, …) for a power of two n; may work in place.

    The first rounds have wide strides and process eight vectors at a time, since sixteen vectors that are pages apart
    would fall into one cache set. Blocks that fit in the first-level cache then take two rounds of sixteen vectors.
    """
    if n <= 16:
        _round(scratch, source, diagonal, target, n, n, n, True)
        return
    span = n
    rest = n // (BLOCK if n > BLOCK else 16)
    while rest > 1:
        radix = rest if n <= BLOCK else 4 if rest == 16 else min(rest, 8)
        _round(scratch, source, diagonal, target, n, span, radix, span == n)
        span //= radix
        rest //= radix
    for start in range(target, target + n, span):
        if span == BLOCK:
            for i in range(start, start + 16):
                butterflies(scratch, i, i, 16, 16)
        for i in range(start, start + span, 16):
            butterflies(scratch, i, i, 1, 16)


@compiled
def _round(scratch, source, diagonal, target, n, span, radix, first):
    """Run one round of butterflies of a given radix over spans of vectors; the first round applies the diagonal."""
    stride = span // radix
    for start in range(0, n, span):
        for i in range(start, start + stride):
            if first:
                if radix == 16:
                    weighted_butterflies(scratch, source + i, diagonal, i, target + i, stride, 16)
                elif radix == 8:
                    weighted_butterflies(scratch, source + i, diagonal, i, target + i, stride, 8)
                elif radix == 4:
                    weighted_butterflies(scratch, source + i, diagonal, i, target + i, stride, 4)
                elif radix == 2:
                    weighted_butterflies(scratch, source + i, diagonal, i, target + i, stride, 2)
                else:
                    copy(scratch, target + i, source + i, diagonal[i])
            elif radix == 8:
                butterflies(scratch, target + i, target + i, stride, 8)
            elif radix == 4:
                butterflies(scratch, target + i, target + i, stride, 4)
            else:
                butterflies(scratch, target + i, target + i, stride, 2)
