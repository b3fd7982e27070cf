"""
Which map, and how large
========================

There are several feature maps for one kernel. :class:`~ntkit.display.ErrorCurveDisplay` measures them on your own rows:
the relative error ‖ZZᵀ − K‖ / ‖K‖, in Frobenius norm, against the number of features, or against seconds.
"""

from sklearn.datasets import load_digits
from sklearn.preprocessing import normalize

from ntkit import GradientFeatures, NTKFeatures, NTKPolynomialSketch, NTKRandomFeatures, NTKSketch, networks
from ntkit.display import ErrorCurveDisplay

# %%
# Four maps of the NTK
# --------------------
#
# All approximate the kernel of a network of two hidden layers. The first three are sketches or random features of that
# kernel; the last are gradients of a finite network, which come to the kernel only as the network grows wide.

X = normalize(load_digits().data)
maps = {
    "polynomial sketch": NTKPolynomialSketch(depth=2),
    "random features": NTKRandomFeatures(depth=2),
    "NTK sketch": NTKSketch(depth=2),
    "gradients": GradientFeatures(networks.fully_connected(2)),
}
display = ErrorCurveDisplay.from_estimators(maps, X, n_components=(128, 256, 512, 1024), n_samples=1000, random_state=0)
_ = display.ax_.set_title("NTK of depth 2, digits")

# %%
# Errors of random maps fall with the root of their size, the dotted line; bands show three seeds. Gradients take many
# more features for the same error.
#
# Against time
# ------------
#
# The display keeps the seconds, too: medians of three runs on 1000 rows, a first impression and no benchmark. What a
# map costs beyond its size depends on the number of columns.

_ = display.plot(x="seconds")

# %%
# The size for an error
# ---------------------
#
# Every map can be asked how large it has to be on your rows.

print(NTKFeatures(depth=2, random_state=0).suggest_n_components(X, 0.05), "features for a relative error of 5 %")
