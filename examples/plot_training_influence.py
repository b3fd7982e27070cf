"""
Which training images made this prediction?
===========================================

The gradients of a trained network tell which training rows changed an output.
:class:`~ntkit.EmpiricalNTKFeatures` sketches the gradients in one forward and backward
pass. :class:`~ntkit.attribution.TrainingInfluence` computes influence scores from them.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from ntkit import EmpiricalNTKFeatures
from ntkit.attribution import TrainingInfluence, residuals

# %%
# A small network and some wrong labels
# -------------------------------------
#
# Fifty of the thousand training labels are wrong.

torch.manual_seed(0)
rng = np.random.default_rng(0)
images, labels = load_digits(return_X_y=True)
X = torch.from_numpy((images / 8 - 1).astype(np.float32)).reshape(-1, 1, 8, 8)
X_train, X_test, y_test = X[:1000], X[1000:], torch.from_numpy(labels[1000:])
flipped = rng.choice(1000, 50, replace=False)
given = labels[:1000].copy()
given[flipped] = (given[flipped] + rng.integers(1, 10, 50)) % 10
y_train = torch.from_numpy(given)

net = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
    nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
    nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
)  # fmt: skip
optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
for _ in range(10):
    for rows in torch.randperm(1000).split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X_train[rows]), y_train[rows]).backward()
        optimizer.step()
net.eval()
accuracy = (net(X_test).argmax(1) == y_test).float().mean()
print(f"{sum(p.numel() for p in net.parameters())} weights, accuracy {accuracy:.3f}")

# %%
# Features of gradients
# ---------------------
#
# 1024 features represent the gradients of 38 000 weights. The map measures which layers
# matter and gives them more components.

features = EmpiricalNTKFeatures(net, n_components=1024, random_state=0).fit(
    X_train, y_train
)
for layer in features.layers_:
    print(
        f"{layer['name']:10} {layer['n_weights']:6} weights, "
        f"{layer['n_components']:4} components, {layer['law']}"
    )
print(f"error of the kernel: {features.estimate_error(X_test[:200], y_test[:200]):.3f}")

# %%
# The images behind a prediction
# ------------------------------
#
# Each row shows a test image, the training images that helped its margin most, and the
# training images that harmed it most. Wrong labels are red. They have the largest
# influence, in either direction, because little is left to learn from images that the
# network is sure of.

influence = TrainingInfluence(shrinkage=10.0).fit(
    features.transform(X_train, y_train), residuals(net, X_train, y_train)
)
chosen = [int((y_test == digit).nonzero()[0]) for digit in (3, 5, 8)]
Z_test = features.transform(X_test[chosen], y_test[chosen])
helpful, _ = influence.top_k(Z_test, k=4)
harmful, _ = influence.top_k(Z_test, k=4, harmful=True)
fig, axes = plt.subplots(len(chosen), 9, figsize=(10, 4), layout="constrained")
for row, index in enumerate(chosen):
    axes[row, 0].imshow(X_test[index, 0], cmap="gray")
    axes[row, 0].set_title(f"test: {int(y_test[index])}", fontweight="bold")
    for column, i in enumerate([*helpful[row], *harmful[row]], start=1):
        axes[row, column].imshow(X_train[i, 0], cmap="gray")
        axes[row, column].set_title(
            f"{'+' if column < 5 else '−'} {given[i]}",
            color="red" if i in flipped else "black",
        )
for ax in axes.flat:
    ax.set_axis_off()

# %%
# Wrong labels
# ------------
#
# A row whose label contradicts the others has a large influence on its own loss.

own = influence.self_influence()
top = np.argsort(-own)[:100]
found = np.isin(flipped, top).sum()
print(
    f"{found} of 50 wrong labels are among the 100 rows with the largest self-influence"
)
fig, ax = plt.subplots(figsize=(6, 3), layout="constrained")
bins = np.geomspace(max(own.min(), 1e-12), own.max(), 40)
ax.hist(own[np.setdiff1d(np.arange(1000), flipped)], bins, label="right label")
ax.hist(own[flipped], bins, label="wrong label")
ax.set(xscale="log", xlabel="self-influence", ylabel="training rows")
_ = ax.legend()
