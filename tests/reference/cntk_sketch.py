"""Features of network kernels written out: Definition 3 with whole tensor powers, and kernels of truncated series."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from tests.reference import kernels as exact

from ntkit import networks as nn
from ntkit.kernels.expansions import dual_at_one, dual_polynomial, truncated_coefficients


def powers(v: np.ndarray, coefficients: Sequence[float]) -> np.ndarray:
    """⊕_l √c_l v^{⊗l}."""
    tensors = [np.ones(1)]
    while len(tensors) < len(coefficients):
        tensors.append(np.kron(tensors[-1], v))
    return np.concatenate([np.sqrt(c) * tensor for c, tensor in zip(coefficients, tensors, strict=True)])


def definition_3(x: np.ndarray, depth: int, q: int, c: Sequence[float], b: Sequence[float]) -> np.ndarray:
    """CNTK features of one image by Definition 3 of Zandieh et al. (NeurIPS 2021), q odd, with φ̇ in Eq. (113).

    All its sketches (S, Q, T, W, R, G) are identities: the only errors are those of the polynomials with coefficients c
    for κ₁ and b for κ₀.
    """
    d1, d2, _ = x.shape
    r = (q - 1) // 2
    pixels, offsets = list(product(range(d1), range(d2))), list(product(range(-r, r + 1), repeat=2))

    def direct_sum(field: dict, i: int, j: int) -> np.ndarray:
        zero = np.zeros_like(next(iter(field.values())))
        return np.concatenate([field.get((i + s, j + t), zero) for s, t in offsets])

    N = {p: q * q * float(x[p] @ x[p]) for p in pixels}
    phi = {p: x[p] for p in pixels}
    psi: dict[Any, np.ndarray] = {p: np.zeros(0) for p in pixels}
    for h in range(1, depth + 1):
        N = {(i, j): sum(N.get((i + s, j + t), 0.0) for s, t in offsets) / q**2 for i, j in pixels}
        mu = {p: direct_sum(phi, *p) / np.sqrt(N[p]) for p in pixels}
        phi = {p: np.sqrt(N[p]) / q * powers(mu[p], c) for p in pixels}
        dot = {p: powers(mu[p], b) / q for p in pixels}
        eta = {p: np.kron(psi[p], dot[p]) for p in pixels}
        if h == depth:
            return sum(eta.values()) / (d1 * d2)
        eta = {p: np.concatenate([eta[p], phi[p]]) for p in pixels}
        psi = {p: direct_sum(eta, *p) for p in pixels}
    raise AssertionError("depth ≥ 1")


def series_kernel(net: nn.Layer, X: np.ndarray, degree: int, derivative_degree: int) -> tuple[np.ndarray, np.ndarray]:
    """NNGP and NTK of all pairs, power series in place of dual activations, by the walk of `kernels.network`."""
    n = len(X)
    nngp, ntk = np.zeros((n, n)), np.zeros((n, n))
    images = X if X.ndim == 4 else X[:, None, None, :]
    for s, t in product(range(n), range(n)):
        pairs = ((images[s], images[s]), (images[s], images[t]), (images[t], images[t]))
        state = [(np.einsum("ijc,klc->ijkl", a, b), np.zeros((*a.shape[:2], *b.shape[:2]))) for a, b in pairs]
        _, (sigma, theta), _ = _walk(net, state, (degree, derivative_degree))
        nngp[s, t], ntk[s, t] = sigma.item(), theta.item()
    return nngp, ntk


def _walk(layer: nn.Layer, state: list, degrees: tuple[int, int]) -> list:
    if isinstance(layer, nn.Sequential):
        for part in layer.layers:
            state = _walk(part, state, degrees)
        return state
    if isinstance(layer, nn.Residual):
        ends = [_walk(branch, state, degrees) for branch in layer.branches]
        return [tuple(sum(end[s][k] for end in ends) for k in range(2)) for s in range(3)]
    xx, yy = state[0][0], state[2][0]
    if isinstance(layer, nn.Activation):
        return [
            (_series(layer, A, a, b, degrees[0], derivative=False),
             B * _series(layer, A, a, b, degrees[1], derivative=True))
            for (A, B), (a, b) in zip(state, ((xx, xx), (xx, yy), (yy, yy)), strict=True)
        ]  # fmt: skip
    if isinstance(layer, nn.Normalize):
        pairs = zip(state, ((xx, xx), (xx, yy), (yy, yy)), strict=True)
        return [exact._normalize(layer, *part, a, b) for part, (a, b) in pairs]
    return [exact._linear(layer, *part) for part in state]


def _series(
    layer: nn.Activation, A: np.ndarray, xx: np.ndarray, yy: np.ndarray, degree: int, *, derivative: bool
) -> np.ndarray:
    """Σ_j ĥ_j(a) ĥ_j(b) t^j for every pair of pixels."""
    h_x, h_y = (_coefficients(layer, _variances(v), degree, derivative=derivative) for v in (xx, yy))
    out = np.zeros_like(A)
    for i, j, k, m in np.ndindex(*A.shape):
        scale = np.sqrt(xx[i, j, i, j] * yy[k, m, k, m])
        t = np.clip(A[i, j, k, m] / scale, -1, 1) if scale > 0 else 0.0
        out[i, j, k, m] = np.polynomial.polynomial.polyval(t, h_x[i, j] * h_y[k, m])
    return out


def _variances(xx: np.ndarray) -> np.ndarray:
    return np.array([[xx[i, j, i, j] for j in range(xx.shape[1])] for i in range(xx.shape[0])])


def _coefficients(layer: nn.Activation, a: np.ndarray, degree: int, *, derivative: bool) -> np.ndarray:
    """ĥ_j(a), for piecewise linear activations √a (1 for the derivative) times roots of a fitted polynomial's."""
    if not isinstance(layer, nn.ReLU | nn.LeakyReLU | nn.Abs):
        return truncated_coefficients(layer, a, range(degree + 1), derivative=derivative)
    roots = np.sqrt(np.array(dual_polynomial(layer, degree, derivative=derivative)[0]) * float(dual_at_one(layer, 1.0)))
    return (np.ones_like(a) if derivative else np.sqrt(a))[..., None] * roots
