"""
One network, three uses
=======================

Describe a network once. ntkit computes the exact kernel of its infinitely wide version,
features of this kernel, and the gradients of a finite version.
"""

import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from ntkit import (
    FeatureRidgeClassifier,
    GradientFeatures,
    KernelRidgeClassifier,
    NetworkFeatures,
)
from ntkit import networks as nn
from ntkit.display import KernelApproximationDisplay

# %%
# The network
# -----------
#
# The network has two convolutions with a pooling layer between them. The data are 200
# images of 8 × 8 pixels. Images have the shape (n, height, width, channels).

digits = load_digits()
images, labels = digits.images[..., None] / 16, digits.target
train, test = slice(0, 200), slice(200, 500)
conv = (nn.Conv(3), nn.ReLU())
net = nn.Sequential(*conv, nn.AvgPool(2), *conv, nn.Flatten(), nn.Dense())

# %%
# Three models
# ------------
#
# We fit ridge classifiers on the exact kernel, on sketched features, and on the
# gradients of a network with 16 channels. Each chooses its penalty on its training
# images.

sketch = NetworkFeatures(net, n_components=1024, random_state=0)
gradients = GradientFeatures(net, width=16, random_state=0)
models = {
    "exact kernel": KernelRidgeClassifier(net, alphas=np.logspace(-6, 0, 7)),
    "1024 sketched features": FeatureRidgeClassifier(sketch, random_state=0),
    "gradients, 16 channels": FeatureRidgeClassifier(gradients, random_state=0),
}
accuracy, seconds = {}, {}
for name, model in models.items():
    model.fit(images[:20], labels[:20])  # load compiled code before the timing
    start = time.perf_counter()
    model.fit(images[train], labels[train])
    accuracy[name] = model.score(images[test], labels[test])
    seconds[name] = time.perf_counter() - start

fig, ax = plt.subplots(figsize=(7, 2.6), layout="constrained")
bars = ax.barh(
    list(accuracy),
    [100 * a for a in accuracy.values()],
    color=["black", "C0", "C1"],
    height=0.6,
)
ax.bar_label(
    bars,
    [f"{100 * accuracy[name]:.1f} %, {seconds[name]:.1f} s" for name in accuracy],
    padding=4,
)
ax.invert_yaxis()
ax.set(
    xlabel="Accuracy on 300 test images, in %; seconds to fit and predict",
    xlim=(0, 125),
)
ax.set_xticks(range(0, 101, 20))
ax.spines[["top", "right"]].set_visible(False)

# %%
# With 300 test images, differences of two points are within chance. The gradients of
# such a small network are the fastest. The time for the exact kernel grows with the
# square of the number of images, the time for features linearly.
#
# Kernel values
# -------------
#
# The kernel values of sketched features scatter around the exact values. The values
# from gradients of one network with 16 channels are further off, although there are
# more gradients than features. A wider network would come closer. This has little
# effect on the accuracy.

fig, axes = plt.subplots(
    1, 2, figsize=(9, 4), sharex=True, sharey=True, layout="constrained"
)
for ax, features, name in zip(
    axes, (sketch, gradients), ("features", "gradients"), strict=True
):
    features.fit(images[train])
    n_features = features.transform(images[:1]).shape[1]
    KernelApproximationDisplay.from_estimator(
        features,
        images[train],
        n_samples=100,
        random_state=0,
        ax=ax,
        name=f"{n_features} {name}",
    )
