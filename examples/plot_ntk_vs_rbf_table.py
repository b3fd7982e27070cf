"""
The neural tangent kernel on a table, in ten lines
==================================================

A kernel machine with the neural tangent kernel (NTK) behaves like a very wide trained
network. With features Z(x)·Z(y) ≈ NTK(x, y) it is a linear model, and
:class:`~ntkit.NTKFeatures` is one more step of a scikit-learn pipeline. This example
compares it with scikit-learn's ``RBFSampler`` for the Gaussian kernel.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from ntkit import FeatureRidgeClassifier, NTKFeatures

# %%
# Ten lines
# ---------
#
# Each row has 64 pixels. The NTK has no length scale to choose; its depth is the depth
# of the network. The Gaussian kernel has a length scale, which ``gamma="scale"`` sets.

X, y = load_digits(return_X_y=True)
X = X / 16
ntk = NTKFeatures(depth=2, n_components=1024, random_state=0)
rbf = RBFSampler(gamma="scale", n_components=1024, random_state=0)
for features in (ntk, rbf):
    model = make_pipeline(features, RidgeClassifier()).fit(X[:1000], y[:1000])
    print(f"{type(features).__name__}: {model.score(X[1000:], y[1000:]):.3f}")

# %%
# A fair comparison
# -----------------
#
# One split says little, and one penalty does not suit both kernels. Below,
# :class:`~ntkit.FeatureRidgeClassifier` chooses the penalty of each model on its
# training rows, for five folds and several numbers of features.

folds = StratifiedKFold(5, shuffle=True, random_state=0)
sizes = [64, 128, 256, 512]


def errors(features):
    """Return the error in percent on each fold."""
    return 100 * (
        1
        - cross_val_score(
            FeatureRidgeClassifier(features, random_state=0), X, y, cv=folds
        )
    )


fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
for features, name in ((ntk, "NTK"), (rbf, "Gaussian")):
    values = np.array(
        [errors(features.set_params(n_components=size)) for size in sizes]
    )
    mean, std = values.mean(axis=1), values.std(axis=1)
    (line,) = ax.plot(sizes, mean, marker="o", label=f"{name} features")
    ax.fill_between(
        sizes, mean - std, mean + std, color=line.get_color(), alpha=0.15, linewidth=0
    )
    print(f"{name}: {mean[-1]:.2f} % with {sizes[-1]} features")
linear = errors(FunctionTransformer()).mean()
ax.axhline(linear, color="grey", linestyle=":", label="linear, no features")
ax.set(
    xscale="log",
    xlabel="Number of features",
    ylabel="Error in %, five folds",
    title="Digits",
)
ax.set_xticks(sizes, [str(size) for size in sizes])
ax.minorticks_off()
_ = ax.legend()

# %%
# Bands are one standard deviation over the folds. Neither kernel is best at all sizes:
# the NTK is better with 128 and 256 features, the Gaussian with 64 and 512. From 128
# features on, both beat the linear model. To find the better kernel for a table, try
# both; :class:`~ntkit.FeatureRidgeSearchClassifier` does this for you.
