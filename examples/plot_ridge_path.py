"""
Choosing the ridge penalty
==========================

:class:`~ntkit.FeatureRidge` chooses its penalty α by the leave-one-out error, which
follows from one fit on all rows. :class:`~ntkit.display.RidgePathDisplay` plots the
errors.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes, load_digits

from ntkit import FeatureRidge, FeatureRidgeClassifier, KernelRidge, NTKFeatures
from ntkit.display import RidgePathDisplay

# %%
# Few rows, much noise
# --------------------
#
# The diabetes data have 442 rows and little signal, so a strong penalty is best. The
# second axis shows the effective degrees of freedom, tr G(G + αI)⁻¹ with the Gram
# matrix G of the features.

X, y = load_diabetes(return_X_y=True)
X = X / X.std(axis=0)
features = NTKFeatures(depth=1, n_components=1024, bias="auto", random_state=0)
model = FeatureRidge(features, random_state=0).fit(X, y)
display = RidgePathDisplay.from_estimator(model, degrees_of_freedom=True)
display.ax_.set_yscale("log")
_ = display.ax_.set_title("Diabetes")

# %%
# Several models in one figure
# ----------------------------
#
# This figure compares the exact kernel with 128 and 1024 features. At the best penalty
# they hardly differ. If the penalty is too weak, features are worse than the kernel,
# and 1024 features are worse than 128, which are too few to fit the noise of 442 rows.

alphas = np.logspace(-1, 5, 13)
fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
bias = np.full((len(X), 1), np.sqrt(X.shape[1]))  # the column that bias="auto" appends
exact = KernelRidge("ntk", alphas=alphas, depth=1).fit(np.hstack([X, bias]), y)
displays = [
    RidgePathDisplay.from_estimator(exact, ax=ax, name="exact kernel", color="black")
]
for size in (128, 1024):
    model = FeatureRidge(
        features.set_params(n_components=size), alphas=alphas, random_state=0
    ).fit(X, y)
    displays.append(
        RidgePathDisplay.from_estimator(model, ax=ax, name=f"{size} features")
    )
_ = ax.set(yscale="log", title="Diabetes")
_ = ax.legend(handles=[display.line_ for display in displays])

# %%
# Classes
# -------
#
# Classifiers choose the penalty by the log loss of their probabilities. Digits have
# little noise, so all weak penalties are equally good. The model then takes the
# strongest of them.

X, y = load_digits(return_X_y=True)
model = FeatureRidgeClassifier(
    NTKFeatures(depth=2, n_components=512, random_state=0), random_state=0
)
display = RidgePathDisplay.from_estimator(model.fit(X / 16, y))
_ = display.ax_.set_title("Digits")
