"""Triton counterparts of :mod:`ntkit.kernels._numba` and :mod:`ntkit.kernels._pairs_numba` for CUDA tensors.

Pairs of images: displacements are taken modulo the image size. (di, dj) with 0 ≤ di < h, 0 ≤ dj < w stands for all
pairs of pixels (i, j), (i + di mod h, j + dj mod w), so every field has exactly h · w entries and no lane is idle. A
filter must not reach across the wrap: it reads a neighbour only if both pixels, shifted without wrapping, lie inside
the image. Fields are held in registers. A filter exchanges them through the scratch memory of its program, which stays
in the caches because programs are persistent: each one loops over its share of displacements and pairs.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl

from ntkit.kernels import _numba
from ntkit.kernels import _pairs_numba as columns
from ntkit.kernels.chain import NEAR_GAP
from ntkit.networks.activations import SAME

PROGRAMS_PER_PROCESSOR = 8  # 4 to 32 made no difference on an H200
CHAIN_BLOCK = 1024  # pairs per program of `chain`
_CONV = tl.constexpr(columns.CONV)
_N_COLUMNS, _N_FACTORS = tl.constexpr(columns.N_COLUMNS), tl.constexpr(columns.N_FACTORS)
_KIND, _TRAINED = tl.constexpr(columns.KIND), tl.constexpr(columns.TRAINED)
_Q_H, _Q_W = tl.constexpr(columns.Q_H), tl.constexpr(columns.Q_W)
_BEFORE_H, _BEFORE_W = tl.constexpr(columns.BEFORE_H), tl.constexpr(columns.BEFORE_W)
_H_OUT, _W_OUT = tl.constexpr(columns.H_OUT), tl.constexpr(columns.W_OUT)
_SCALE, _MIX, _BIAS = tl.constexpr(columns.SCALE), tl.constexpr(columns.MIX), tl.constexpr(columns.BIAS)
_N_EVEN = tl.constexpr(len(_numba._EVEN))
_N_ODD = tl.constexpr(len(_numba._ODD))


def chain(
    cosines: torch.Tensor,
    mixes: torch.Tensor,
    trained: torch.Tensor,
    tables: tuple[torch.Tensor, torch.Tensor] | None,
    x_scale: torch.Tensor,
    y_scale: torch.Tensor,
    nngp: torch.Tensor | None,
    ntk: torch.Tensor | None,
) -> bool:
    """Compute the kernels of a chain from cosines and write them to `nngp` and `ntk`, unless these are None.

    See :func:`ntkit.kernels.chain.recursion`; `tables` have the shapes (n, layers, 3) and (layers, 3, m). Return
    whether any cosine is so close to ±1 that its entry should be recomputed from the difference of its rows.
    """
    n, m = cosines.shape
    outs = [out for out in (nngp, ntk) if out is not None]
    near = torch.zeros(1, dtype=torch.int32, device=cosines.device)
    with _on(cosines.device):
        _chain[(n, triton.cdiv(m, CHAIN_BLOCK))](
            cosines, mixes, trained, _constants(cosines.device), *(tables or (cosines, cosines)), x_scale, y_scale,
            outs[0], outs[-1], near, m, outs[0].stride(0), len(mixes), BIASED=tables is not None,
            WANT_NNGP=nngp is not None, WANT_NTK=ntk is not None, BLOCK=CHAIN_BLOCK,
        )  # fmt: skip
    return bool(near.item())


def segment(
    pairs: torch.Tensor,
    X: torch.Tensor,
    Y: torch.Tensor,
    nngp_in: torch.Tensor,
    ntk_in: torch.Tensor | None,
    x_stats: torch.Tensor,
    y_stats: torch.Tensor,
    ops: torch.Tensor,
    factors: torch.Tensor,
    *,
    sums: bool,
    all_displacements: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Propagate pairs of images through convolutions and activations.

    The parameters are the same as in :func:`ntkit.kernels._pairs_numba.segment`. Return Σ and Θ (None if `ntk_in` is
    None) at the end. With `sums`, these are sums over all pairs of pixels (over same-pixel pairs without
    `all_displacements`), of shape (p,). Otherwise they contain all pairs of pixels, with shape (p, h, w, h, w), where
    h, w is the size at the start of the segment; entries beyond the size at its end are zero.
    """
    want_ntk = ntk_in is not None
    h, w = x_stats.shape[3:]
    n_displacements = h * w if all_displacements else 1
    shape = (len(pairs), n_displacements) if sums else (len(pairs), h, w, h, w)
    outs = [torch.empty(shape, dtype=torch.float64, device=pairs.device) for _ in range(1 + want_ntk)]
    block = triton.next_power_of_2(h * w)
    work = len(pairs) * n_displacements
    grid = min(work, _processors(pairs.device) * PROGRAMS_PER_PROCESSOR)
    scratch = torch.empty((grid, 4, block), dtype=torch.float64, device=pairs.device)
    with _on(pairs.device):
        _segment[(grid,)](
            pairs, X, Y, nngp_in, nngp_in if ntk_in is None else ntk_in, x_stats, y_stats, ops, factors,
            _constants(pairs.device), scratch, outs[0], outs[-1],
            work, X.shape[1], len(ops), x_stats.shape[1], h, w,
            N_DISPLACEMENTS=n_displacements, FROM_IMAGES=len(X) > 0, WANT_NTK=want_ntk, SUMS=sums, BLOCK=block,
            num_warps=max(1, min(16, block // 128)),
        )  # fmt: skip
    if sums:
        outs = [out.sum(1) for out in outs]
    return outs[0], outs[1] if want_ntk else None


def _on(device: Any) -> Any:
    """Make `device` the current device, since Triton launches there regardless of where the tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@lru_cache
def _processors(device: Any) -> int:
    if device.type != "cuda":  # Triton's interpreter
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


@lru_cache
def _constants(device: Any) -> torch.Tensor:
    """Return the coefficients of arccos, 1/π and thresholds in float64; Triton may round literals to float32."""
    values = [*_numba._EVEN, *_numba._ODD, 1 / math.pi, NEAR_GAP, SAME]
    return torch.tensor(values, dtype=torch.float64, device=device)


@triton.jit
def _arc_cosine_pair(x, negative, constants):
    """Compute κ₀(t), κ₁(t) and 1 − κ₁(t) for t = ±(1 − x) in float64, as the function of this name in `_numba`."""
    u = 2.0 * x - 1.0
    u2 = u * u
    even = tl.zeros_like(x) + tl.load(constants)
    for k in tl.static_range(1, _N_EVEN):
        even = even * u2 + tl.load(constants + k)
    odd = tl.zeros_like(x) + tl.load(constants + _N_EVEN)
    for k in tl.static_range(1, _N_ODD):
        odd = odd * u2 + tl.load(constants + _N_EVEN + k)
    theta = tl.sqrt(2.0 * x) * (even + u * odd)
    inverse_pi = tl.load(constants + _N_EVEN + _N_ODD)
    q = (tl.sqrt(x * (2.0 - x)) - theta * (1.0 - x)) * inverse_pi
    k0 = theta * inverse_pi
    return tl.where(negative, k0, 1.0 - k0), tl.where(negative, q, 1.0 - x + q), tl.where(negative, 1.0 - q, x - q)


@triton.jit
def _with_biases(sigma, x, theta, x_row, y_rows, m, inside):
    """Apply the biases of a layer; see :func:`ntkit.kernels.chain._with_biases`."""
    a, b = tl.load(x_row), tl.load(x_row + 1)
    alpha = tl.load(y_rows, mask=inside, other=1.0)
    beta = tl.load(y_rows + m, mask=inside, other=0.0)
    upsilon = tl.load(y_rows + 2 * m, mask=inside, other=0.0)
    scale = a * alpha
    upper = scale * tl.where(sigma < 0.0, 2.0 - x, x) + 0.5 * ((a - alpha) * (a - alpha) + (b - beta) * (b - beta))
    sigma = scale * sigma + b * beta
    x = tl.where(sigma < 0.0, 1.0 + sigma, tl.minimum(tl.maximum(upper, 0.0), 1.0))
    return sigma, x, scale * theta + tl.load(x_row + 2) * upsilon


@triton.jit
def _chain(
    cosines, mixes, trained, constants, x_table, y_table, x_scale, y_scale, nngp, ntk, near, m, stride, n_layers,
    BIASED: tl.constexpr, WANT_NNGP: tl.constexpr, WANT_NTK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < m
    sigma = tl.load(cosines + row * m + column, mask=inside, other=0.0)
    x = tl.maximum(1.0 - tl.abs(sigma), 0.0)
    if tl.min(x, 0) < tl.load(constants + _N_EVEN + _N_ODD + 1):
        tl.store(near, 1)
    theta = tl.load(trained) * sigma
    x_row, y_rows = x_table + row * (n_layers + 1) * 3, y_table + column
    if BIASED:
        sigma, x, theta = _with_biases(sigma, x, theta, x_row, y_rows, m, inside)
    for layer in range(n_layers):
        w = tl.load(mixes + layer)
        negative = sigma < 0.0
        k0, k1, gap = _arc_cosine_pair(x, negative, constants)
        sigma = w * tl.where(negative, x - 1.0, 1.0 - x) + (1.0 - w) * k1
        gap = w * tl.where(negative, 2.0 - x, x) + (1.0 - w) * gap
        theta = theta * (w + (1.0 - w) * k0) + tl.load(trained + layer + 1) * sigma
        x = tl.where(sigma < 0.0, 1.0 + sigma, tl.maximum(gap, 0.0))
        if BIASED:
            at = (layer + 1) * 3
            sigma, x, theta = _with_biases(sigma, x, theta, x_row + at, y_rows + at * m, m, inside)
    scale = tl.load(x_scale + row) * tl.load(y_scale + column, mask=inside, other=0.0)
    if WANT_NNGP:
        tl.store(nngp + row * stride + column, (scale * sigma).to(nngp.dtype.element_ty), mask=inside)
    if WANT_NTK:
        tl.store(ntk + row * stride + column, (scale * theta).to(ntk.dtype.element_ty), mask=inside)


@triton.jit
def _slide(field, k, step, at, at2, size, q, before, WANT_NTK: tl.constexpr, BLOCK: tl.constexpr):
    """Sum both fields over a window along one axis; `at` and `at2` are the positions of the pixels on this axis."""
    sigma = tl.zeros((BLOCK,), tl.float64)
    theta = tl.zeros((BLOCK,), tl.float64)
    for tap in range(q):
        shift = tap - before
        both = (at + shift >= 0) & (at + shift < size) & (at2 + shift >= 0) & (at2 + shift < size)
        sigma += tl.load(field + k + shift * step, mask=both, other=0.0)
        if WANT_NTK:
            theta += tl.load(field + BLOCK + k + shift * step, mask=both, other=0.0)
    return sigma, theta


@triton.jit
def _put(field, k, sigma, theta, WANT_NTK: tl.constexpr, BLOCK: tl.constexpr):
    """Store both fields where the other threads of the program can read them."""
    tl.store(field + k, sigma)
    if WANT_NTK:
        tl.store(field + BLOCK + k, theta)
    tl.debug_barrier()


@triton.jit
def _activate(sigma, theta, x_stats, y_stats, pixels, gain, mix, inside, constants):
    """Σ → s · gain · (w t + (1 − w) κ₁(t)), Θ → Θ · gain · (w + (1 − w) κ₀(t)), t = Σ/s, s = sd(x) sd(y)."""
    inverse = tl.load(x_stats + pixels, mask=inside, other=0.0) * tl.load(y_stats + pixels, mask=inside, other=0.0)
    scale = tl.load(x_stats, mask=inside, other=0.0) * tl.load(y_stats, mask=inside, other=0.0)
    t = sigma * inverse
    gap = 1.0 - tl.abs(t)
    gap = tl.where(gap > tl.load(constants + _N_EVEN + _N_ODD + 2), gap, 0.0)
    k0, k1, _ = _arc_cosine_pair(gap, t < 0.0, constants)
    sigma = gain * scale * (mix * t + (1.0 - mix) * k1)
    return sigma, tl.where(scale > 0.0, theta * gain * (mix + (1.0 - mix) * k0), 0.0)


@triton.jit
def _segment(
    pairs, X, Y, nngp_in, ntk_in, x_stats, y_stats, ops, factors, constants, scratch, nngp_out, ntk_out,
    work, channels, n_ops, n_activations, H, W,
    N_DISPLACEMENTS: tl.constexpr, FROM_IMAGES: tl.constexpr, WANT_NTK: tl.constexpr, SUMS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    pixels = H * W
    k = tl.arange(0, BLOCK)
    i, j = k // W, k % W
    before = scratch + program * 4 * BLOCK  # Σ and Θ before a filter
    between = before + 2 * BLOCK  # Σ and Θ between its sums over rows and over columns
    for item in range(program, work, tl.num_programs(0)):
        p, displacement = item // N_DISPLACEMENTS, item % N_DISPLACEMENTS
        a, b = tl.load(pairs + 2 * p), tl.load(pairs + 2 * p + 1)
        i2, j2 = i + displacement // W, j + displacement % W
        i2, j2 = tl.where(i2 >= H, i2 - H, i2), tl.where(j2 >= W, j2 - W, j2)
        k2 = i2 * W + j2
        inside = k < pixels
        sigma = tl.zeros((BLOCK,), tl.float64)
        theta = tl.zeros((BLOCK,), tl.float64)
        at = (k.to(tl.int64) + p * pixels) * pixels + k2
        if FROM_IMAGES:
            for c in range(channels):
                x = tl.load(X + (a * channels + c) * pixels + k, mask=inside, other=0.0)
                sigma += x * tl.load(Y + (b * channels + c) * pixels + k2, mask=inside, other=0.0)
        else:
            sigma = tl.load(nngp_in + at, mask=inside, other=0.0)
            if WANT_NTK:
                theta = tl.load(ntk_in + at, mask=inside, other=0.0)
        h, w = H, W
        activation = 0
        for op in range(n_ops):
            code = ops + op * _N_COLUMNS
            factor = factors + op * _N_FACTORS
            if tl.load(code + _KIND) == _CONV:
                trained = tl.load(code + _TRAINED).to(tl.float64)
                theta += trained * sigma
                _put(before, k, sigma, theta, WANT_NTK, BLOCK)
                q, zeros = tl.load(code + _Q_H), tl.load(code + _BEFORE_H)
                sigma, theta = _slide(before, k, W, i, i2, h, q, zeros, WANT_NTK, BLOCK)
                _put(between, k, sigma, theta, WANT_NTK, BLOCK)
                q, zeros = tl.load(code + _Q_W), tl.load(code + _BEFORE_W)
                sigma, theta = _slide(between, k, 1, j, j2, w, q, zeros, WANT_NTK, BLOCK)
                h, w = tl.load(code + _H_OUT).to(tl.int32), tl.load(code + _W_OUT).to(tl.int32)
                inside = (i < h) & (i2 < h) & (j < w) & (j2 < w) & (k < pixels)
                scale, bias = tl.load(factor + _SCALE), tl.load(factor + _BIAS)
                sigma = tl.where(inside, sigma * scale + bias, 0.0)
                theta = tl.where(inside, theta * scale + trained * bias, 0.0)
            else:
                x_at = x_stats + ((a * n_activations + activation) * 2) * pixels + k
                y_at = y_stats + ((b * n_activations + activation) * 2) * pixels + k2
                gain, mix = tl.load(factor + _SCALE), tl.load(factor + _MIX)
                sigma, theta = _activate(sigma, theta, x_at, y_at, pixels, gain, mix, inside, constants)
                activation += 1
        if SUMS:
            tl.store(nngp_out + item, tl.sum(sigma, 0))
            if WANT_NTK:
                tl.store(ntk_out + item, tl.sum(theta, 0))
        else:
            tl.store(nngp_out + at, sigma, mask=k < pixels)
            if WANT_NTK:
                tl.store(ntk_out + at, theta, mask=k < pixels)
