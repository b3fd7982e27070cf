"""
Standard deviations of predictions
==================================

Ridge regression is the mean of a Gaussian process. :class:`~ntkit.FeatureRidge` also
returns its standard deviation. Away from the data, both depend on the kernel.
"""

import matplotlib.pyplot as plt
import numpy as np

from ntkit import FeatureRidge, GaussianFeatures, NTKFeatures

# %%
# Data with a gap
# ---------------

rng = np.random.default_rng(0)
x = np.concatenate([rng.uniform(-3, -0.5, 60), rng.uniform(1.2, 3, 40)])
y = np.sin(2 * x) + 0.3 * x + 0.15 * rng.standard_normal(len(x))
grid = np.linspace(-6, 6, 400)

# %%
# Three kernels
# -------------
#
# With the Gaussian kernel, data have no effect beyond the length scale: away from the
# data, the mean returns to a constant and the standard deviation returns to the prior.
# A ReLU network continues in straight lines, and its standard deviation grows. With one
# column, depth changes little. Bands are two standard deviations of a new target, noise
# included. The NTK needs a bias here: without one, its functions are straight lines on
# each side of 0.

models = {
    "Gaussian, length scale 1": GaussianFeatures(
        n_components=256, lengthscale=1.0, random_state=0
    ),
    "NTK, depth 1": NTKFeatures(depth=1, n_components=256, bias=1.0, random_state=0),
    "NTK, depth 4": NTKFeatures(depth=4, n_components=256, bias=1.0, random_state=0),
}
fig, axes = plt.subplots(1, 3, figsize=(11, 3.4), sharey=True, layout="constrained")
for ax, (name, features) in zip(axes, models.items(), strict=True):
    model = FeatureRidge(features, random_state=0).fit(x[:, None], y)
    mean, std = model.predict(grid[:, None], return_std=True)
    ax.fill_between(
        grid,
        mean - 2 * std,
        mean + 2 * std,
        alpha=0.2,
        linewidth=0,
        label="mean ± 2 std",
    )
    ax.plot(grid, mean)
    ax.plot(grid, np.sin(2 * grid) + 0.3 * grid, "k:", linewidth=1, label="truth")
    ax.scatter(x, y, s=8, color="black", zorder=3)
    ax.set(title=name, xlabel="x", ylim=(-5, 5))
_ = axes[0].legend(loc="upper left")

# %%
# Are they calibrated?
# --------------------
#
# Within the range of the data, about 95 % of new targets should lie within two standard
# deviations. Outside this range there is no such guarantee: the true function keeps
# oscillating, but the straight lines are overconfident.

new = np.concatenate([rng.uniform(-3, -0.5, 1200), rng.uniform(1.2, 3, 800)])
targets = np.sin(2 * new) + 0.3 * new + 0.15 * rng.standard_normal(len(new))
for name, features in models.items():
    mean, std = (
        FeatureRidge(features, random_state=0)
        .fit(x[:, None], y)
        .predict(new[:, None], return_std=True)
    )
    print(f"{name}: {np.mean(np.abs(targets - mean) < 2 * std):.1%}")
