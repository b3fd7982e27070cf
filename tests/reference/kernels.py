"""Definitions 1 and 2 of Zandieh et al. (NeurIPS 2021), straight from the text, and a loop-by-loop network walk."""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from ntkit import networks as nn


def pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def dense_layers(net: nn.Layer) -> list[nn.Dense]:
    """Dense layers of nested Sequentials, in order."""
    if isinstance(net, nn.Sequential):
        return [dense for layer in net.layers for dense in dense_layers(layer)]
    return [net] if isinstance(net, nn.Dense) else []


def kappa0(t: float) -> float:
    return (math.pi - math.acos(t)) / math.pi


def kappa1(t: float) -> float:
    return (math.sqrt(1 - t * t) + t * (math.pi - math.acos(t))) / math.pi


def definition_1(x: np.ndarray, y: np.ndarray, depth: int) -> float:
    """‖x‖‖y‖ K_relu^(L)(cos)."""
    norms = float(np.linalg.norm(x) * np.linalg.norm(y))
    if norms == 0:
        return 0.0
    sigma = theta = min(1.0, max(-1.0, float(x @ y) / norms))
    for _ in range(depth):
        theta = theta * kappa0(sigma) + kappa1(sigma)
        sigma = min(1.0, kappa1(sigma))
    return norms * theta


def definition_2(y: np.ndarray, z: np.ndarray, depth: int, q: int) -> float:
    """Convolutional NTK of two images (d1, d2, c), Eqs. (103)–(108); q odd."""
    d1, d2, _ = y.shape
    r = (q - 1) // 2
    offsets = list(product(range(-r, r + 1), repeat=2))
    pixels = list(product(range(d1), range(d2)))

    def inside(i: int, j: int) -> bool:
        return 0 <= i < d1 and 0 <= j < d2

    def norms(x: np.ndarray) -> list[dict[tuple[int, int], float]]:
        levels = [{(i, j): q * q * float(np.sum(x[i, j] ** 2)) for i, j in pixels}]
        for _ in range(depth):
            last = levels[-1]
            levels.append(
                {(i, j): sum(last[i + a, j + b] for a, b in offsets if inside(i + a, j + b)) / q**2 for i, j in pixels}
            )
        return levels

    ny, nz = norms(y), norms(z)
    quads = [(*p, *s) for p in pixels for s in pixels]

    def patch_sum(field: dict, i: int, j: int, k: int, m: int) -> float:
        return sum(
            field[i + a, j + b, k + a, m + b] for a, b in offsets if inside(i + a, j + b) and inside(k + a, m + b)
        )

    gamma = {(i, j, k, m): float(y[i, j] @ z[k, m]) for i, j, k, m in quads}
    pi = dict.fromkeys(quads, 0.0)
    for h in range(1, depth + 1):
        new_gamma, dot_gamma = {}, {}
        for i, j, k, m in quads:
            scale = math.sqrt(ny[h][i, j] * nz[h][k, m])
            t = min(1.0, max(-1.0, patch_sum(gamma, i, j, k, m) / scale)) if scale > 0 else 0.0
            new_gamma[i, j, k, m] = scale / q**2 * kappa1(t)
            dot_gamma[i, j, k, m] = kappa0(t) / q**2
        gamma = new_gamma
        inner = {s: pi[s] * dot_gamma[s] + (gamma[s] if h < depth else 0.0) for s in quads}
        pi = {s: patch_sum(inner, *s) for s in quads} if h < depth else inner
    return sum(pi.values()) / (d1 * d2) ** 2


def dual_by_quadrature(sigma, derivative, a: float, b: float, c: float, nodes: int = 120):
    """E[σ(u)σ(v)] and E[σ′(u)σ′(v)] by Gauss–Hermite quadrature, for smooth σ."""
    z, w = np.polynomial.hermite_e.hermegauss(nodes)
    w = w / w.sum()
    u = math.sqrt(a) * z[:, None]
    v = (c / math.sqrt(a)) * z[:, None] + math.sqrt(max(b - c * c / a, 0.0)) * z[None, :]
    weights = w[:, None] * w[None, :]
    return tuple(float(np.sum(weights * f(u) * f(v))) for f in (sigma, derivative))


def network(net: nn.Layer, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """NNGP and NTK of one pair, all covariances (xx, xy, yy) of all pairs of pixels carried along."""
    if x.ndim == 1:
        x, y = x[None, None, :], y[None, None, :]
    state = [
        (np.einsum("ijc,klc->ijkl", a, b), np.zeros((*a.shape[:2], *b.shape[:2]))) for a, b in ((x, x), (x, y), (y, y))
    ]
    state = _walk(net, state)
    return float(state[1][0].item()), float(state[1][1].item())


def _walk(layer: nn.Layer, state: list) -> list:
    if isinstance(layer, nn.Sequential):
        for part in layer.layers:
            state = _walk(part, state)
        return state
    if isinstance(layer, nn.Residual):
        ends = [_walk(branch, state) for branch in layer.branches]
        return [tuple(sum(end[s][k] for end in ends) for k in range(2)) for s in range(3)]
    if isinstance(layer, nn.Activation | nn.Normalize):
        xx, yy = state[0][0], state[2][0]
        apply = {nn.Normalize: _normalize, nn.Gaussian: _gaussian}.get(type(layer), _activate)
        return [apply(layer, *state[0], xx, xx), apply(layer, *state[1], xx, yy), apply(layer, *state[2], yy, yy)]
    return [_linear(layer, *part) for part in state]


def _activate(layer, nngp, ntk, xx, yy):
    new_nngp, new_ntk = np.zeros_like(nngp), np.zeros_like(ntk)
    for i, j, k, m in np.ndindex(*nngp.shape):
        s = math.sqrt(xx[i, j, i, j] * yy[k, m, k, m])
        if s == 0:
            continue
        t = min(1.0, max(-1.0, nngp[i, j, k, m] / s))
        alpha = {nn.ReLU: 0.0, nn.Abs: -1.0}.get(type(layer), getattr(layer, "slope", None))
        # σ(z) = (1+α)/2 z + (1−α)/2 |z|, and E|u||v| = 2κ₁ − t, E sign u sign v = 2κ₀ − 1.
        forward = ((1 + alpha) / 2) ** 2 * t + ((1 - alpha) / 2) ** 2 * (2 * kappa1(t) - t)
        derivative = ((1 + alpha) / 2) ** 2 + ((1 - alpha) / 2) ** 2 * (2 * kappa0(t) - 1)
        norm = (1 + alpha**2) / 2 if layer.normalize else 1.0
        new_nngp[i, j, k, m] = s * forward / norm
        new_ntk[i, j, k, m] = ntk[i, j, k, m] * derivative / norm
    return new_nngp, new_ntk


def _gaussian(_layer, nngp, ntk, xx, yy):
    new_nngp, new_ntk = np.zeros_like(nngp), np.zeros_like(ntk)
    for i, j, k, m in np.ndindex(*nngp.shape):
        value = math.exp(nngp[i, j, k, m] - xx[i, j, i, j] / 2 - yy[k, m, k, m] / 2)
        new_nngp[i, j, k, m], new_ntk[i, j, k, m] = value, ntk[i, j, k, m] * value
    return new_nngp, new_ntk


def _normalize(_layer, nngp, ntk, xx, yy):
    new_nngp, new_ntk = np.zeros_like(nngp), np.zeros_like(ntk)
    for i, j, k, m in np.ndindex(*nngp.shape):
        norms = math.sqrt(xx[i, j, i, j] * yy[k, m, k, m])
        if norms > 0:
            new_nngp[i, j, k, m], new_ntk[i, j, k, m] = nngp[i, j, k, m] / norms, ntk[i, j, k, m] / norms
    return new_nngp, new_ntk


def _linear(layer, nngp, ntk):
    if isinstance(layer, nn.Dense):
        scale = layer.weight_std**2
        return scale * nngp, scale * (ntk + layer.trainable * nngp)
    if isinstance(layer, nn.Conv):
        scale = layer.weight_std**2
        return scale * _conv(layer, nngp), scale * _conv(layer, ntk + layer.trainable * nngp)
    if isinstance(layer, nn.AvgPool):
        return _pool(layer, nngp), _pool(layer, ntk)
    h, w = nngp.shape[:2]
    if isinstance(layer, nn.GlobalAvgPool):
        return tuple(A.mean().reshape(1, 1, 1, 1) for A in (nngp, ntk))
    assert isinstance(layer, nn.Flatten)
    return tuple(np.mean([A[i, j, i, j] for i in range(h) for j in range(w)]).reshape(1, 1, 1, 1) for A in (nngp, ntk))


def _axis(size: int, q: int, stride: int, padding: str) -> list[list[int]]:
    """Input positions of every output: the convention of XLA's and TensorFlow's SAME and VALID."""
    if padding == "valid":
        return [list(range(o, o + q)) for o in range(0, size - q + 1, stride)]
    n_out = math.ceil(size / stride)
    before = max((n_out - 1) * stride + q - size, 0) // 2
    return [[o * stride - before + a for a in range(q)] for o in range(n_out)]


def _conv(layer, A):
    h, w = A.shape[:2]
    (qh, qw), (sh, sw) = pair(layer.kernel_size), pair(layer.stride)
    rows, cols = _axis(h, qh, sh, layer.padding), _axis(w, qw, sw, layer.padding)
    out = np.zeros((len(rows), len(cols)) * 2)
    for i, j, k, m in np.ndindex(*out.shape):
        for a, b in product(range(qh), range(qw)):
            at = rows[i][a], cols[j][b], rows[k][a], cols[m][b]
            if all(0 <= p < n for p, n in zip(at, (h, w, h, w), strict=True)):
                out[i, j, k, m] += A[at] / (qh * qw)
    return out


def _pool(layer, A):
    h, w = A.shape[:2]
    (ph, pw), (sh, sw) = pair(layer.size), pair(layer.stride or layer.size)
    rows, cols = _axis(h, ph, sh, "valid"), _axis(w, pw, sw, "valid")
    out = np.zeros((len(rows), len(cols)) * 2)
    for i, j, k, m in np.ndindex(*out.shape):
        out[i, j, k, m] = np.mean(A[np.ix_(rows[i], cols[j], rows[k], cols[m])])
    return out
