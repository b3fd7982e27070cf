"""
The functions behind the kernel
===============================

The NTK of a fully connected ReLU network depends on the cosine of two rows and their norms only:
NTK(x, y) = ‖x‖ ‖y‖ K(cos(x, y)). What depth does to that function.
"""

import matplotlib.pyplot as plt
import numpy as np

from ntkit.display import plot_relu_ntk
from ntkit.kernels import arc_cosine, relu_ntk

# %%
# Depth
# -----
#
# Divided by its value L + 1 at cosine 1, the function falls to a plateau: to a deep network all rows look alike, but
# for near copies. Depths of 1 to 3 are the useful ones on tables.

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
# Two arc-cosine functions: κ₁ is what a ReLU does to the cosine of two rows, κ₀ what its
# derivative does. A network of one hidden layer has K(t) = t κ₀(t) + κ₁(t): the first term
# from training the first layer, the second from training the last.

fig, ax = plt.subplots(figsize=(5, 3.6), layout="constrained")
ax.plot(t, relu_ntk(t, 1), label="K$^{(1)}$")
ax.plot(t, t * arc_cosine(t, 0), "--", label="t κ$_0$: first layer")
ax.plot(t, arc_cosine(t, 1), "--", label="κ$_1$: last layer")
ax.set(xlabel="cosine t", xlim=(-1, 1))
ax.legend()
print(f"largest difference: {np.abs(relu_ntk(t, 1) - t * arc_cosine(t, 0) - arc_cosine(t, 1)).max():.1e}")

# %%
# The kink at cosine 1
# --------------------
#
# The slope of the function is infinite at cosine 1: the difference to its value there goes with the angle, not with the
# square of the angle as for a smooth kernel. That is why its series converges slowly.

angle = np.geomspace(1e-3, 1, 200)
fig, ax = plt.subplots(figsize=(5, 3.6), layout="constrained")
for depth in (1, 2, 4):
    ax.loglog(angle, 1 - relu_ntk(np.cos(angle), depth) / (depth + 1), label=f"NTK, L = {depth}")
ax.loglog(angle, 1 - np.exp(-(angle**2) / 2), "k:", label="Gaussian, of the angle")
ax.set(xlabel="Angle of two rows", ylabel="1 − normalized kernel")
_ = ax.legend()
