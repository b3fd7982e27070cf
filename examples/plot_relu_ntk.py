"""
The NTK as a function of the cosine
===================================

The NTK of a fully connected ReLU network depends only on the norms of two rows and the
cosine between them: NTK(x, y) = ‖x‖ ‖y‖ K(cos(x, y)). This example shows how the
function K depends on the depth.
"""

import matplotlib.pyplot as plt
import numpy as np

from ntkit.display import plot_relu_ntk
from ntkit.kernels import arc_cosine, relu_ntk

# %%
# Depth
# -----
#
# Divided by its value L + 1 at cosine 1, the function falls to a plateau. To a deep
# network, all rows look alike, except near-duplicates. Depths 1 to 3 are useful on
# tables.

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
plot_relu_ntk(ax=left)
left.set_title("Normalized, for L = 1 … 32")
t = np.cos(np.linspace(np.pi, 0, 801))
for depth in (1, 2, 4):
    right.plot(t, relu_ntk(t, depth), label=f"L = {depth}")
right.set(title="Not normalized", xlabel="cosine t", ylabel="K$_{relu}^{(L)}$(t)")
_ = right.legend()

# %%
# Where it comes from
# -------------------
#
# A ReLU maps the cosine t of two rows to the arc-cosine function κ₁(t), and its
# derivative maps t to κ₀(t). A network with one hidden layer has K(t) = t κ₀(t) +
# κ₁(t). The first term comes from training the first layer, the second from training
# the last layer.

fig, ax = plt.subplots(figsize=(5, 3.6), layout="constrained")
ax.plot(t, relu_ntk(t, 1), label="K$^{(1)}$")
ax.plot(t, t * arc_cosine(t, 0), "--", label="t κ$_0$: first layer")
ax.plot(t, arc_cosine(t, 1), "--", label="κ$_1$: last layer")
ax.set(xlabel="cosine t", xlim=(-1, 1))
ax.legend()
sum_of_terms = t * arc_cosine(t, 0) + arc_cosine(t, 1)
print(f"largest difference: {np.abs(relu_ntk(t, 1) - sum_of_terms).max():.1e}")

# %%
# The kink at cosine 1
# --------------------
#
# The function has infinite slope at cosine 1. Near cosine 1 it falls linearly with the
# angle. A smooth kernel falls with the square of the angle. That is why the series of
# the NTK converges slowly.

angle = np.geomspace(1e-3, 1, 200)
fig, ax = plt.subplots(figsize=(5, 3.6), layout="constrained")
for depth in (1, 2, 4):
    ax.loglog(
        angle,
        1 - relu_ntk(np.cos(angle), depth) / (depth + 1),
        label=f"NTK, L = {depth}",
    )
ax.loglog(angle, 1 - np.exp(-(angle**2) / 2), "k:", label="Gaussian, of the angle")
ax.set(xlabel="Angle of two rows", ylabel="1 − normalized kernel")
_ = ax.legend()

# sphinx_gallery_thumbnail_number = 2
