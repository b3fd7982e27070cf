"""Naive versions of features of torch modules: gradients by torch.func, sketches as explicit matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from ntkit.sketches import TensorSRHT
from ntkit.sketches.draws import draw_rows, draw_signs


def gradients(module: nn.Module, scalar: Callable[..., torch.Tensor], X: Any, y: Any) -> dict[str, np.ndarray]:
    """Return the gradient of scalar(module, x, y) row by row, as (rows, weights) for every trained parameter."""
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    parameters = dict(module.named_parameters())
    found: dict[str, list[np.ndarray]] = {name: [] for name in names}
    n_rows = len(next(iter(X.values()))) if isinstance(X, dict) else len(X[0]) if isinstance(X, tuple) else len(X)
    for i in range(n_rows):
        if isinstance(X, dict):
            row: Any = {key: value[i : i + 1] for key, value in X.items()}
        else:
            row = tuple(x[i : i + 1] for x in X) if isinstance(X, tuple) else X[i : i + 1]
        value = scalar(module, row, None if y is None else y[i : i + 1])
        grads = torch.autograd.grad(value.sum(), [parameters[name] for name in names], allow_unused=True)
        for name, grad in zip(names, grads, strict=True):
            grad = torch.zeros_like(parameters[name]) if grad is None else grad
            found[name].append(grad.detach().double().flatten().numpy())
    return {name: np.stack(rows) for name, rows in found.items()}


def margin(module: nn.Module, x: Any, y: torch.Tensor) -> torch.Tensor:
    """f_y − log Σ_{c ≠ y} exp f_c, written out; summed over positions."""
    logits = module(**x) if isinstance(x, dict) else module(*x) if isinstance(x, tuple) else module(x)
    logits, y = logits.reshape(-1, logits.shape[-1]), y.reshape(-1)
    total = torch.zeros((), dtype=logits.dtype)
    for row, label in zip(logits, y.tolist(), strict=True):
        others = torch.cat([row[:label], row[label + 1 :]])
        total = total + row[label] - torch.log(torch.exp(others).sum())
    return total


def kernel(grads: dict[str, np.ndarray]) -> np.ndarray:
    """Inner products of the gradients of all pairs of rows."""
    return np.asarray(sum(G @ G.T for G in grads.values()))


def matrix(layer: Any) -> np.ndarray:
    """The sketch of one parameter as a matrix (components, weights), from its draws."""
    size, m = layer.planned.parameter.size, layer.m
    if layer.planned.law == "identity":
        return np.eye(size)
    if layer.planned.law == "tensor":
        return TensorSRHT(layer.shape, m).sample(layer.seed).matrix()
    S = np.zeros((m, size))
    S[draw_rows(layer.seed, n=m, size=size, replace=False), np.arange(size)] = draw_signs(layer.seed, size=size)
    return S


def features(grads: dict[str, np.ndarray], fitted: Any) -> np.ndarray:
    """Gradients times explicit sketches."""
    layers = fitted._sketch.layers
    return np.concatenate([grads[name] @ matrix(layer).T for name, layer in layers.items()], axis=1)


def tensor_variance(G: np.ndarray, H: np.ndarray) -> float:
    """Bound for the variance of one component of a TensorSRHT: Gaussian factors in the place of signs."""
    inner = float((G * H).sum())
    return float(
        (G**2).sum() * (H**2).sum()
        + inner**2
        + 2 * (((G.T @ H) ** 2).sum() + ((G @ H.T) ** 2).sum() + np.trace(G.T @ H @ G.T @ H))
    )


def count_variance(G: np.ndarray, H: np.ndarray, m: int) -> float:
    """Variance of ⟨S vec G, S vec H⟩ for a CountSketch in which weights of one block of m never collide."""
    x, y = G.ravel(), H.ravel()
    block = np.arange(len(x)) // m
    apart = block[:, None] != block
    return float(((np.outer(x**2, y**2) + np.outer(x * y, x * y)) * apart).sum() / m)
