"""
Functions on a sphere
=====================

A kernel of the angle between two points is a sum of Gegenbauer polynomials. In three
dimensions, the polynomial of degree ℓ is a sum over 2ℓ + 1 spherical harmonics.
:class:`~ntkit.GegenbauerFeatures` uses the harmonics themselves as features, as far as
they fit: 1024 features hold all degrees below 32, and nothing is random.
"""

import matplotlib.pyplot as plt
import numpy as np

from ntkit import FeatureRidge, GegenbauerFeatures, RandomFourierFeatures
from ntkit.display import ErrorCurveDisplay

# %%
# A synthetic planet
# ------------------
#
# The heights are rough in some places and smooth in others. They are known at 4000
# points, with noise.

rng = np.random.default_rng(0)


def height(points):
    """Return a smooth function with a crater and a mountain range."""
    x, y, z = points.T
    angle = np.arccos(np.clip(points @ np.array([0.6, 0.64, 0.48]), -1, 1))
    crater = np.exp(-((angle - 0.35) ** 2) / 0.006)
    ridge = np.sin(9 * x + 3 * z) * np.exp(-4 * (y + 0.5) ** 2)
    return 0.6 * z + crater + 0.7 * ridge


points = rng.standard_normal((4000, 3))
points /= np.linalg.norm(points, axis=1, keepdims=True)
known = height(points) + 0.2 * rng.standard_normal(len(points))

# %%
# Prediction
# ----------
#
# The model is ridge regression on the harmonics of degrees below 24. Details finer than
# the length scale of the kernel, such as the rim of the crater, are blurred.

longitude = np.linspace(-np.pi, np.pi, 121)
latitude = np.linspace(-np.pi / 2, np.pi / 2, 61)
east, north = np.meshgrid(longitude, latitude)
grid = np.stack(
    [np.cos(north) * np.cos(east), np.cos(north) * np.sin(east), np.sin(north)], axis=-1
).reshape(-1, 3)

features = GegenbauerFeatures(
    "gaussian", n_components=576, lengthscale=0.2, random_state=0
)
model = FeatureRidge(features, random_state=0).fit(points, known)
mean = model.predict(grid)

fig, axes = plt.subplots(
    1,
    3,
    figsize=(11, 2.6),
    subplot_kw={"projection": "mollweide"},
    layout="constrained",
)
pictures = {
    "True heights": height(grid),
    "Predicted from 4000 points": mean,
    "Error": mean - height(grid),
}
for ax, (title, values) in zip(axes, pictures.items(), strict=True):
    mesh = ax.pcolormesh(
        east,
        north,
        values.reshape(east.shape),
        cmap="RdBu_r",
        vmin=-1.5,
        vmax=1.5,
        shading="gouraud",
    )
    ax.set_title(title, fontsize=10)
    ax.set(xticklabels=[], yticklabels=[])
    ax.grid(alpha=0.3)
fig.colorbar(mesh, ax=axes, shrink=0.8)
error = np.sqrt(np.mean((mean - height(grid)) ** 2))
print(f"root mean squared error: {error:.3f} (noise of the data: 0.2)")

# %%
# Comparison with random features
# -------------------------------
#
# Random Fourier features approximate the same Gaussian kernel. Their error falls with
# the square root of their number. The error of the harmonics falls as fast as the
# spectrum of the kernel.

maps = {
    "harmonics": GegenbauerFeatures("gaussian", lengthscale=0.2),
    "Fourier": RandomFourierFeatures(lengthscale=0.2),
}
display = ErrorCurveDisplay.from_estimators(
    maps, points, n_components=(64, 144, 256, 576), n_samples=300, random_state=0
)
_ = display.ax_.set_title("Gaussian of length scale 0.2 on the sphere")

# sphinx_gallery_thumbnail_number = 2
