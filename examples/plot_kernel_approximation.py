"""
A kernel matrix and its approximation by features
=================================================

Features replace the kernel matrix K by ZZᵀ.
:class:`~ntkit.display.KernelApproximationDisplay` compares the two entry by entry, as
matrices, and by their eigenvalues.
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
# Each point is a pair of rows. With more features, the points move to the diagonal.

fig, axes = plt.subplots(
    1, 3, figsize=(10.5, 3.6), sharex=True, sharey=True, layout="constrained"
)
for ax, size in zip(axes, (64, 256, 2048), strict=True):
    features = NTKFeatures(depth=2, n_components=size, random_state=0).fit(X)
    KernelApproximationDisplay.from_estimator(
        features, X, random_state=0, ax=ax, name=f"{size} features"
    )

# %%
# Matrices
# --------
#
# The display keeps the order of the rows. Rows sorted by class show blocks, because
# digits of one class are similar.

some = np.random.default_rng(0).choice(len(X), 200, replace=False)
sorted_rows = X[some[np.argsort(y[some], kind="stable")]]
features = NTKFeatures(depth=2, n_components=1024, random_state=0).fit(X)
display = KernelApproximationDisplay.from_estimator(
    features, sorted_rows, kind="matrix"
)

# %%
# Spectrum
# --------
#
# With m features, ZZᵀ has at most m nonzero eigenvalues. Few features are enough for
# the large eigenvalues, which matter most for learning. Some of the others are too
# large, and the smallest are lost. A ridge penalty hides these errors.

fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
for size in (64, 512):
    features = NTKFeatures(depth=2, n_components=size, random_state=0).fit(X)
    display = KernelApproximationDisplay.from_estimator(
        features,
        X,
        n_samples=500,
        random_state=0,
        kind="spectrum",
        ax=ax,
        name=f"{size} features",
    )
display.lines_[0].remove()  # the exact spectrum, which both displays draw
_ = ax.legend()

# sphinx_gallery_thumbnail_number = 3
