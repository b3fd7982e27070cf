"""
A kernel matrix beside that of its features
===========================================

Features replace the kernel matrix K by ZZᵀ. How close they are, entry by entry:
:class:`~ntkit.display.KernelApproximationDisplay`.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.preprocessing import normalize

from ntkit import NTKFeatures
from ntkit.display import KernelApproximationDisplay

X, y = load_digits(return_X_y=True)
X = normalize(X)

# %%
# Entries
# -------
#
# A point is a pair of rows. With more features the points move to the diagonal.

fig, axes = plt.subplots(1, 3, figsize=(10.5, 3.6), sharex=True, sharey=True, layout="constrained")
for ax, size in zip(axes, (64, 256, 2048), strict=True):
    features = NTKFeatures(depth=2, n_components=size, random_state=0).fit(X)
    KernelApproximationDisplay.from_estimator(features, X, random_state=0, ax=ax, name=f"{size} features")

# %%
# Matrices
# --------
#
# Rows are sampled in their order, so that rows sorted by their class show blocks: digits of one class are alike.

some = np.random.default_rng(0).choice(len(X), 200, replace=False)
sorted_rows = X[some[np.argsort(y[some], kind="stable")]]
features = NTKFeatures(depth=2, n_components=1024, random_state=0).fit(X)
display = KernelApproximationDisplay.from_estimator(features, sorted_rows, kind="matrix")

# %%
# Spectrum
# --------
#
# Features of size m have at most m eigenvalues. The large ones, on which learning rests, are right with few features.
# Of the others, some come out too large and the smallest are lost: a ridge penalty hides them.

fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
for size in (64, 512):
    features = NTKFeatures(depth=2, n_components=size, random_state=0).fit(X)
    display = KernelApproximationDisplay.from_estimator(
        features, X, n_samples=500, random_state=0, kind="spectrum", ax=ax, name=f"{size} features"
    )
display.lines_[0].remove()  # the exact spectrum, which the first display has drawn
_ = ax.legend()
