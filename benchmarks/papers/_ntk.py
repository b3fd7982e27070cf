"""Shared parts of the reproductions of the NTK paper: its machine, tuning of exact kernels."""

from __future__ import annotations

import numpy as np

from experiment import to_numpy

PAPER_HARDWARE = "Intel E5-2630 and GeForce RTX 2080"


def best_held_out(models, X, y, loss, *, n_fit, n_held=2000, seed=0):
    """Return the model with the smallest loss on `n_held` held-out rows, fitted on at most `n_fit` other rows."""
    order = np.random.default_rng(seed).permutation(len(y))
    n_held = min(n_held, len(y) // 5)
    held, rest = order[:n_held], order[n_held : n_held + n_fit]
    losses = [loss(y[held], to_numpy(model.fit(X[rest], y[rest]).predict(X[held]))) for model in models]
    return models[int(np.argmin(losses))]
