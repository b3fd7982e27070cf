"""
Which map, and how many features
================================

A kernel can have several feature maps. :class:`~ntkit.display.ErrorCurveDisplay`
measures them on your own rows. It plots the relative error ‖ZZᵀ − K‖ / ‖K‖ in the
Frobenius norm against the number of features, or against time.
"""

from sklearn.datasets import load_digits
from sklearn.preprocessing import normalize

from ntkit import (
    GradientFeatures,
    NTKFeatures,
    NTKPolynomialSketch,
    NTKRandomFeatures,
    NTKSketch,
    networks,
)
from ntkit.display import ErrorCurveDisplay

# %%
# Four maps of the NTK
# --------------------
#
# All four approximate the kernel of a network with two hidden layers. The first three
# are sketches or random features of this kernel. The last one is the gradient of a
# finite network, which approaches the kernel only for wide networks.

X = normalize(load_digits().data)
maps = {
    "polynomial sketch": NTKPolynomialSketch(depth=2),
    "random features": NTKRandomFeatures(depth=2),
    "NTK sketch": NTKSketch(depth=2),
    "gradients": GradientFeatures(networks.fully_connected(2)),
}
display = ErrorCurveDisplay.from_estimators(
    maps, X, n_components=(128, 256, 512, 1024), n_samples=1000, random_state=0
)
_ = display.ax_.set_title("NTK of depth 2, digits")

# %%
# The errors of random maps fall with the square root of their size (dotted line). Bands
# show three seeds. Gradients need many more features for the same error.
#
# Against time
# ------------
#
# The display also stores the times: medians of three runs on 1000 rows. They give a
# first impression and are no benchmark. The cost of a map depends on the number of
# columns too.

_ = display.plot(x="seconds")

# %%
# The number of features for an error
# -----------------------------------
#
# Every map can estimate how many features it needs on your rows.

print(
    NTKFeatures(depth=2, random_state=0).suggest_n_components(X, 0.05),
    "features for a relative error of 5 %",
)
