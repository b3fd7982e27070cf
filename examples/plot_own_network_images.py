"""
One network, three uses
=======================

Write a network once. Its exact kernel of infinite width, features of that kernel, and gradients of a finite version of
it are three functions of that description.
"""

import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from ntkit import FeatureRidgeClassifier, GradientFeatures, KernelRidgeClassifier, NetworkFeatures
from ntkit import networks as nn
from ntkit.display import KernelApproximationDisplay

# %%
# The network
# -----------
#
# Two convolutions with a pooling layer between, on 200 images of 8 × 8 pixels. Images have the shape
# (n, height, width, channels).

digits = load_digits()
images, labels = digits.images[..., None] / 16, digits.target
train, test = slice(0, 200), slice(200, 500)
conv = (nn.Conv(3), nn.ReLU())
net = nn.Sequential(*conv, nn.AvgPool(2), *conv, nn.Flatten(), nn.Dense())

# %%
# Three models
# ------------
#
# Ridge classifiers on the exact kernel, on sketched features, and on gradients of a network of 16 channels. Each
# chooses its penalty on its training images.

sketch = NetworkFeatures(net, n_components=1024, random_state=0)
gradients = GradientFeatures(net, width=16, random_state=0)
models = {
    "exact kernel": KernelRidgeClassifier(net, alphas=np.logspace(-6, 0, 7)),
    "1024 sketched features": FeatureRidgeClassifier(sketch, random_state=0),
    "gradients, 16 channels": FeatureRidgeClassifier(gradients, random_state=0),
}
accuracy, seconds = {}, {}
for name, model in models.items():
    model.fit(images[:20], labels[:20])  # compiled code loads now, not inside a timing
    start = time.perf_counter()
    model.fit(images[train], labels[train])
    accuracy[name] = model.score(images[test], labels[test])
    seconds[name] = time.perf_counter() - start

fig, ax = plt.subplots(figsize=(7, 2.6), layout="constrained")
bars = ax.barh(list(accuracy), [100 * a for a in accuracy.values()], color=["black", "C0", "C1"], height=0.6)
ax.bar_label(bars, [f"{100 * accuracy[name]:.1f} %, {seconds[name]:.1f} s" for name in accuracy], padding=4)
ax.invert_yaxis()
ax.set(xlabel="Accuracy on 300 test images, in %; seconds to fit and predict", xlim=(0, 125))
ax.set_xticks(range(0, 101, 20))
ax.spines[["top", "right"]].set_visible(False)

# %%
# With 300 test images, differences of two points are within chance. Gradients of so small a network are the quickest.
# Seconds of the exact kernel grow with the square of the images, those of features with their number.
#
# Kernel values
# -------------
#
# Sketched features scatter about the exact kernel. Gradients of one network of 16 channels lie beside it, though there
# are more of them: a wider network would come closer. For the accuracy that matters less than one would think.

fig, axes = plt.subplots(1, 2, figsize=(9, 4), sharex=True, sharey=True, layout="constrained")
for ax, features, name in zip(axes, (sketch, gradients), ("features", "gradients"), strict=True):
    features.fit(images[train])
    n_features = features.transform(images[:1]).shape[1]
    KernelApproximationDisplay.from_estimator(
        features, images[train], n_samples=100, random_state=0, ax=ax, name=f"{n_features} {name}"
    )
