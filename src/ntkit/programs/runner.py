"""Entry point of all programs: checks the inputs, chooses the back end and the precision, converts the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import row_batches
from ntkit._validation import check_int, check_same_library
from ntkit.programs import array_api, columns
from ntkit.programs.program import Program
from ntkit.programs.steps import DivideByNorm, EuclideanNorm


def run(program: Program, inputs: Sequence[Array], *, batch_size: int | None = None) -> Array:
    """Run a program on arrays of shape (…, d_i).

    Compiled code handles rows in host memory (NumPy, CPU tensors, SciPy sparse), Triton kernels handle CUDA tensors.
    Array-API code handles all other arrays and tensors that require gradients.

    Parameters
    ----------
    program : Program
    inputs : sequence of arrays
        One array for each input of the program, all from one library and with equal leading axes. They are converted
        to one floating-point dtype, which is also the dtype of the result. 16-bit numbers are computed in float32
        unless there is a faster way.
    batch_size : int, optional
        Maximum number of rows whose intermediate results are held at a time. By default the working-memory budget
        decides.

    Returns
    -------
    array of shape (…, n_outputs)
        The concatenated outputs, in the library and on the device of the inputs.
    """
    _check(program, inputs, batch_size)
    first = inputs[0]
    leading, dtype = tuple(first.shape[:-1]), _array.result_dtype(*inputs)
    if _array.is_sparse(first):
        rows = [x.reshape(-1, x.shape[-1]).tocsr() for x in inputs]
        if any(isinstance(step, EuclideanNorm | DivideByNorm) for step in program.steps):
            rows = [_array.without_duplicates(x) for x in rows]
        return _run_on_host(program, rows, dtype, batch_size).reshape(*leading, program.n_outputs)
    xp: Any = _array.namespace(*inputs)
    if _array.is_traced(first):
        rows = [xp.reshape(x, (-1, x.shape[-1])) for x in inputs]
        return xp.reshape(columns.expression(program, rows), (*leading, program.n_outputs))
    flat = [xp.reshape(x, (-1, x.shape[-1])) for x in inputs]
    return xp.reshape(_run_rows(program, flat, dtype, batch_size), (*leading, program.n_outputs))


def _check(program: Program, inputs: Sequence[Array], batch_size: int | None) -> None:
    """Raise unless the inputs match the program: compiled code would read past their end."""
    if batch_size is not None:
        check_int(batch_size, "batch_size", "run", minimum=1)
    if not program.outputs:
        raise ValueError("The program has no output. Add one with program.output(value).")
    if len(inputs) != len(program.n_features):
        raise ValueError(f"The program takes {len(program.n_features)} inputs. Got {len(inputs)}.")
    for x in inputs[1:]:
        check_same_library(inputs[0], x, "run", "The inputs")
    shapes = [tuple(x.shape) for x in inputs]
    expected = [(*shapes[0][:-1], d) for d in program.n_features]
    if shapes != expected:
        raise ValueError(f"The inputs of this program must have the shapes {expected}. Got {shapes}.")


def _run_rows(program: Program, inputs: list[Array], dtype: Any, batch_size: int | None) -> Array:
    """Run on two-dimensional arrays, on the back end for their device; return rows of `dtype`."""
    first = inputs[0]
    xp: Any = _array.namespace(first)
    differentiable = _array.wants_gradient(inputs)
    if _array.has_triton(first) and not differentiable:
        from ntkit.programs import cuda

        return cuda.run(program, [x.detach().to(dtype) for x in inputs], batch_size)
    if dtype in (xp.float32, xp.float64):
        return _run_wide(program, inputs, dtype, batch_size, differentiable=differentiable)
    # Compute other dtypes in float32 or float64, in batches of rows, and round the result.
    wide = xp.float32 if xp.finfo(dtype).bits < 32 else xp.float64
    bytes_per_row = 4 * (sum(program.n_features) + program.n_outputs)
    batches = list(row_batches(first.shape[0], bytes_per_row, batch_size=batch_size, like=first))
    if differentiable or len(batches) <= 1:
        return xp.astype(_run_wide(program, inputs, wide, batch_size, differentiable=differentiable), dtype)
    out = xp.empty((first.shape[0], program.n_outputs), dtype=dtype, device=_array.device(first))
    for rows in batches:
        out[rows, :] = _run_wide(program, [x[rows, :] for x in inputs], wide, batch_size, differentiable=False)
    return out


def _run_wide(
    program: Program, inputs: list[Array], dtype: Any, batch_size: int | None, *, differentiable: bool
) -> Array:
    """Run in float32 or float64, with compiled code if the rows are in host memory."""
    xp: Any = _array.namespace(inputs[0])
    views = [None if differentiable else _array.host_view(x) for x in inputs]
    # Arrays that NumPy can read are not converted here: compiled code converts them tile by tile.
    pairs = zip(inputs, views, strict=True)
    inputs = [xp.astype(x, dtype, copy=False) if view is None else x for x, view in pairs]
    views = [None if differentiable else _array.host_view(x) for x in inputs]
    if any(view is None for view in views):
        return array_api.run(program, inputs, batch_size=batch_size)
    on_host = np.float64 if dtype == xp.float64 else np.float32
    return _array.like(_run_on_host(program, views, on_host, batch_size), inputs[0])


def _run_on_host(program: Program, inputs: Sequence[Any], dtype: Any, batch_size: int | None) -> np.ndarray:
    from ntkit.programs import host  # imports numba, which is slow

    return host.run(program, inputs, dtype, batch_size)
