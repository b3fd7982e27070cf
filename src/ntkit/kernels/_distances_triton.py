"""Triton counterpart of :mod:`ntkit.kernels._distances_numba` for CUDA tensors: one pass from products to values."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ntkit.kernels import _profiles
from ntkit.kernels._triton import _on

ROWS, COLUMNS = 32, 64  # size of the tile of pairs that one program computes
_GAUSSIAN = tl.constexpr(_profiles.GAUSSIAN.code)
_MATERN_3_2 = tl.constexpr(_profiles.MATERN_3_2.code)
_MATERN_5_2 = tl.constexpr(_profiles.MATERN_5_2.code)
_ABSOLUTE = tl.constexpr(_profiles.ABSOLUTE.code)


def from_differences(x: torch.Tensor, y: torch.Tensor, scale: float, code: int, out: torch.Tensor) -> None:
    """Write φ(a) to `out`, with all distances computed from differences of rows; x and y are float64."""
    _launch(x, x, y, x, x, scale, (0.0, 0.0, 0.0, 0.0), code, out, from_products=False)


def from_products(
    products: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    x_squares: torch.Tensor,
    y_squares: torch.Tensor,
    scale: float,
    limits: tuple[float, float, float, float],
    code: int,
    out: torch.Tensor,
) -> None:
    """Write φ(a) to `out`, with a² = ‖x‖² + ‖y‖² − 2⟨x, y⟩ where this is accurate, and from differences elsewhere.

    `products`, `x_squares` and `y_squares` belong to scaled rows, shifted by any point; x and y are the original rows.
    `limits` are the numbers used by :func:`ntkit.kernels.distances.inaccurate`.
    """
    _launch(products, x, y, x_squares, y_squares, scale, limits, code, out, from_products=True)


def _launch(
    products: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    x_squares: torch.Tensor,
    y_squares: torch.Tensor,
    scale: float,
    limits: tuple[float, float, float, float],
    code: int,
    out: torch.Tensor,
    *,
    from_products: bool,
) -> None:
    (n, d), m = x.shape, y.shape[0]
    # Pass numbers through memory, because Triton may round literals and arguments to float32.
    numbers = torch.tensor([scale, *limits, 2.0**-52, 1 / 3], dtype=torch.float64, device=x.device)
    products, x, y = products.contiguous(), x.contiguous(), y.contiguous()
    with _on(x.device):
        _fill[(triton.cdiv(n, ROWS) * triton.cdiv(m, COLUMNS),)](
            products, x, y, x_squares, y_squares, numbers, out, n, m, d, out.stride(0), out.stride(1),
            CODE=code, FROM_PRODUCTS=from_products, ROWS=ROWS, COLUMNS=COLUMNS,
        )  # fmt: skip


@triton.jit
def _fill(
    products, X, Y, x_squares, y_squares, numbers, out, n, m, d, row_stride, column_stride,
    CODE: tl.constexpr, FROM_PRODUCTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    width = tl.cdiv(m, COLUMNS)
    i = (tl.program_id(0) // width).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    j = (tl.program_id(0) % width).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (i < n)[:, None] & (j < m)[None, :]
    scale = tl.load(numbers)
    tile = tl.zeros((ROWS, COLUMNS), tl.float64)
    bad = inside
    if FROM_PRODUCTS:
        x_square = tl.load(x_squares + i, mask=i < n, other=0.0)
        y_square = tl.load(y_squares + j, mask=j < m, other=0.0)
        total = x_square[:, None] + y_square[None, :]
        tile = total - 2.0 * tl.load(products + i[:, None] * m + j[None, :], mask=inside, other=0.0)
        error = tl.load(numbers + 1) * total
        rounded = tl.load(numbers + 5) * error
        allowed = tl.load(numbers + 2) + tl.load(numbers + 3) * tl.sqrt(tl.maximum(tile, 0.0))
        # Negated comparisons, so that NaN from an overflow counts as inaccurate.
        close = (tile - rounded > tl.load(numbers + 4)) == 0
        lost = (error <= allowed) == 0
        bad = inside & close & (lost | (tile <= rounded))
    again = tl.zeros((ROWS, COLUMNS), tl.float64)
    n_steps = tl.where(tl.max(tl.max(bad.to(tl.int32), 1), 0) > 0, d, 0)
    for k in range(n_steps):
        x = tl.load(X + i * d + k, mask=i < n, other=0.0)
        y = tl.load(Y + j * d + k, mask=j < m, other=0.0)
        z = (x[:, None] - y[None, :]) * scale
        if CODE == _ABSOLUTE:
            again += tl.abs(z)
        else:
            again += z * z
    tile = tl.where(bad, again, tile)
    if CODE == _GAUSSIAN:
        value = tl.exp(-0.5 * tile)
    elif CODE == _ABSOLUTE:
        value = tl.exp(-tile)
    else:
        a = tl.sqrt(tile)
        value = tl.exp(-a)
        if CODE == _MATERN_3_2:
            value = tl.where(value > 0.0, value * (1.0 + a), 0.0)
        if CODE == _MATERN_5_2:
            value = tl.where(value > 0.0, value * (1.0 + a + tile * tl.load(numbers + 6)), 0.0)
    to = out + i[:, None] * row_stride + j[None, :] * column_stride
    tl.store(to, value.to(out.dtype.element_ty), mask=inside)
