"""
Clusters that are not round
===========================

k-means finds round clusters. In the feature space of a kernel, it also finds other
shapes. :class:`~ntkit.FeatureKMeans` is kernel k-means without the kernel matrix.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import make_circles, make_moons
from sklearn.metrics import adjusted_rand_score

from ntkit import FeatureKMeans, GaussianFeatures

# %%
# Rings and moons
# ---------------
#
# Plain k-means cuts both data sets in half. Kernel k-means with a Gaussian kernel
# separates the rings. It also comes closer to the moons, but other partitions of the
# moons have nearly the same objective, and it may end in one of them. Several starts
# help, but may not be enough.

rings = make_circles(400, factor=0.3, noise=0.05, random_state=0)
moons = make_moons(400, noise=0.05, random_state=0)
fig, axes = plt.subplots(2, 2, figsize=(8, 7), layout="constrained")
cases = (("rings", rings, 0.4), ("moons", moons, 0.28))
for row, (name, (X, truth), lengthscale) in zip(axes, cases, strict=True):
    plain = KMeans(2, n_init=10, random_state=0).fit_predict(X)
    features = GaussianFeatures(
        n_components=200, lengthscale=lengthscale, random_state=0
    )
    ours = FeatureKMeans(features, 2, n_init=10, random_state=0).fit(X)
    for ax, labels, title in zip(
        row, (plain, ours.labels_), ("k-means", "kernel k-means"), strict=True
    ):
        ax.scatter(*X.T, c=labels, s=10, cmap="coolwarm")
        # The index is 0 or slightly below for random labels.
        agreement = max(adjusted_rand_score(truth, labels), 0)
        ax.set(
            title=f"{title}, {name}: agreement {agreement:.2f}",
            aspect="equal",
            xticks=[],
            yticks=[],
        )
    exact = ours.kernel_objective(X)
    print(
        f"{name}: objective {ours.inertia_ / len(X):.4f} on features, "
        f"{exact:.4f} with the exact kernel"
    )

# %%
# The length scale matters
# ------------------------
#
# We chose the length scales above from this figure, by the true labels. In practice
# there are no true labels. The figure shows how much depends on the length scale.

scales = np.geomspace(0.08, 2, 9)
fig, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
for name, (X, truth) in {"rings": rings, "moons": moons}.items():
    scores = []
    for scale in scales:
        features = GaussianFeatures(n_components=200, lengthscale=scale, random_state=0)
        labels = FeatureKMeans(features, 2, n_init=5, random_state=0).fit(X).labels_
        scores.append(adjusted_rand_score(truth, labels))
    ax.semilogx(scales, scores, marker="o", label=name)
ax.set(xlabel="Length scale", ylabel="Agreement with the truth\n(adjusted Rand index)")
_ = ax.legend()
