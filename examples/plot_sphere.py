"""
Functions on a sphere
=====================

Kernels of the angle between two points are sums of Gegenbauer polynomials, and in three dimensions each polynomial of
degree ℓ is made of 2ℓ + 1 spherical harmonics. :class:`~ntkit.GegenbauerFeatures` takes the harmonics themselves as
features, as far as they fit: 1024 features hold all degrees below 32, without chance.
"""

import matplotlib.pyplot as plt
import numpy as np

from ntkit import FeatureRidge, GegenbauerFeatures, RandomFourierFeatures
from ntkit.display import ErrorCurveDisplay

# %%
# A made-up planet
# ----------------
#
# Heights that are rough at some places and smooth at others, known with noise at 4000 points.

rng = np.random.default_rng(0)


def height(points):
    """A smooth function with a crater and a mountain range."""
    x, y, z = points.T
    crater = np.exp(-((np.arccos(np.clip(points @ np.array([0.6, 0.64, 0.48]), -1, 1)) - 0.35) ** 2) / 0.006)
    ridge = np.sin(9 * x + 3 * z) * np.exp(-4 * (y + 0.5) ** 2)
    return 0.6 * z + crater + 0.7 * ridge


points = rng.standard_normal((4000, 3))
points /= np.linalg.norm(points, axis=1, keepdims=True)
known = height(points) + 0.2 * rng.standard_normal(len(points))

# %%
# Prediction
# ----------
#
# A ridge model on the harmonics of degrees below 24. What is finer than the length scale of the kernel, as the rim of
# the crater, comes out blurred.

longitude = np.linspace(-np.pi, np.pi, 121)
latitude = np.linspace(-np.pi / 2, np.pi / 2, 61)
east, north = np.meshgrid(longitude, latitude)
grid = np.stack([np.cos(north) * np.cos(east), np.cos(north) * np.sin(east), np.sin(north)], axis=-1).reshape(-1, 3)

features = GegenbauerFeatures("gaussian", n_components=576, lengthscale=0.2, random_state=0)
model = FeatureRidge(features, random_state=0).fit(points, known)
mean = model.predict(grid)

fig, axes = plt.subplots(1, 3, figsize=(11, 2.6), subplot_kw={"projection": "mollweide"}, layout="constrained")
pictures = {"True heights": height(grid), "Predicted from 4000 points": mean, "Error": mean - height(grid)}
for ax, (title, values) in zip(axes, pictures.items(), strict=True):
    mesh = ax.pcolormesh(east, north, values.reshape(east.shape), cmap="RdBu_r", vmin=-1.5, vmax=1.5, shading="gouraud")
    ax.set_title(title, fontsize=10)
    ax.set(xticklabels=[], yticklabels=[])
    ax.grid(alpha=0.3)
fig.colorbar(mesh, ax=axes, shrink=0.8)
print(f"root of the mean squared error: {np.sqrt(np.mean((mean - height(grid)) ** 2)):.3f} (noise of the data: 0.2)")

# %%
# Against random features
# -----------------------
#
# The same Gaussian kernel, by random Fourier features: their error falls with the root of their number. That of the
# harmonics falls as fast as the kernel's spectrum does.

maps = {"harmonics": GegenbauerFeatures("gaussian", lengthscale=0.2), "Fourier": RandomFourierFeatures(lengthscale=0.2)}
display = ErrorCurveDisplay.from_estimators(
    maps, points, n_components=(64, 144, 256, 576), n_samples=300, random_state=0
)
_ = display.ax_.set_title("Gaussian of length scale 0.2 on the sphere")
