"""
A preconditioner for exact kernel ridge regression
==================================================

:class:`~ntkit.KernelRidge` uses the exact kernel and solves (K + αI) c = y by conjugate
gradients. Each iteration takes one product with the matrix. A preconditioner built from
features of the kernel reduces the number of iterations.
"""

import matplotlib.pyplot as plt
import numpy as np

from ntkit import KernelRidge

rng = np.random.default_rng(0)
X = rng.standard_normal((2000, 5))
y = np.sin(X).sum(axis=1) + 0.1 * rng.standard_normal(2000)

# %%
# Residuals
# ---------
#
# ``history_`` has the relative residual after each iteration, for each penalty. Without
# a preconditioner, small penalties take many iterations: the number grows with the
# square root of the condition number. The default preconditioner uses about 20√n
# landmarks, at most n/4, and a correction between neighbouring rows.

fig, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True, layout="constrained")
for ax, alpha in zip(axes, (1.0, 0.01), strict=True):
    for label, options in {
        "none": {"features": None},
        "100 landmarks": {"n_components": 100, "n_neighbors": 0},
        "400 landmarks": {"n_components": 400, "n_neighbors": 0},
        "default": {},
    }.items():
        params = options | {"max_iter": 2000}
        model = KernelRidge(
            "ntk",
            alphas=alpha,
            solver="pcg",
            solver_params=params,
            depth=2,
            random_state=0,
        ).fit(X, y)
        ax.semilogy(model.history_[0][:, 0], label=f"{label}: {model.n_iter_}")
    ax.set(title=f"α = {alpha:g}", xlabel="Iteration", xscale="symlog")
    ax.legend(title="Preconditioner: iterations")
_ = axes[0].set_ylabel("Relative residual")

# %%
# The solution equals the solution by a factorization, up to the tolerance.

direct = KernelRidge("ntk", alphas=0.01, solver="direct", depth=2).fit(X, y)
difference = np.abs(direct.predict(X) - model.predict(X)).max()
print(f"largest difference of predictions: {difference:.1e}")
