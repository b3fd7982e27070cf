"""
The memory wall
===============

Why features: a kernel matrix of n rows has n² entries, and solving with it takes time with n³. Features have n · m, are
made block by block, and a model on them keeps m² numbers whatever n is.
"""

import time

import matplotlib.pyplot as plt
import numpy as np

from ntkit import FeatureRidge, KernelRidge, NTKFeatures

# %%
# Measured
# --------
#
# Fits of the same problem: ridge regression with the exact NTK of depth 2, by a factorization of the matrix, and with
# 1024 features of the kernel.

rng = np.random.default_rng(0)
n_components = 1024
rows = {"exact kernel": [500, 1000, 2000, 4000], "1024 features": [2000, 4000, 8000, 16000]}
X = rng.standard_normal((16000, 20)).astype("float32")
y = np.sin(X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(len(X))
models = {
    "exact kernel": KernelRidge("ntk", alphas=1.0, depth=2, solver="direct"),
    "1024 features": FeatureRidge(
        NTKFeatures(depth=2, n_components=n_components, random_state=0), alphas=1.0, random_state=0
    ),
}
seconds = {}
for name, model in models.items():
    model.fit(X[:1200], y[:1200])  # compiled code loads now, not inside a timing
    seconds[name] = []
    for n in rows[name]:
        start = time.perf_counter()
        model.fit(X[:n], y[:n])
        seconds[name].append(time.perf_counter() - start)

# %%
# Extrapolated
# ------------
#
# Solid lines and points are measured on the machine that made this page. Dashed lines are not: they go on from the
# last point, with n for features, and with n³ for the exact kernel, which is a little too steep at first, where making
# the matrix still counts. Memory is computed: 8 n² bytes for the matrix; for features an upper bound, 20 m² bytes and a
# block of 256 MiB. (Solving by iterations takes n² time in place of n³, and the memory or, computed again and again,
# the time of n² kernel values.)

ends = np.geomspace(1e3, 1e7, 100)
memory = {"exact kernel": 8 * ends**2, "1024 features": np.full_like(ends, 20.0 * n_components**2 + 2**28)}
growth = {"exact kernel": 3, "1024 features": 1}
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
for (name, values), colour in zip(seconds.items(), ("black", "C0"), strict=True):
    last, slowest = rows[name][-1], values[-1]
    left.loglog(rows[name], values, marker="o", color=colour, label=f"{name}, measured")
    on = ends[ends >= last]
    left.loglog(on, slowest * (on / last) ** growth[name], "--", color=colour, label=f"{name}, extrapolated")
    right.loglog(ends, memory[name] / 2**30, "--", color=colour, label=f"{name}, computed")
for seconds_, text in ((60, "a minute"), (3600, "an hour"), (86400, "a day")):
    left.axhline(seconds_, color="grey", linewidth=0.5)
    left.text(4e2, seconds_ * 1.15, text, fontsize=9, color="grey")
for size, text in ((16, "a laptop, 16 GiB"), (1024, "a server, 1 TiB")):
    right.axhline(size, color="grey", linewidth=0.5)
    right.text(1.1e3, size * 1.2, text, fontsize=9, color="grey")
left.set(xlabel="Rows", ylabel="Seconds to fit", ylim=(None, 1e9))
right.set(xlabel="Rows", ylabel="GiB")
left.legend(fontsize=9)
_ = right.legend(fontsize=9)

# %%
# What it costs in accuracy
# -------------------------
#
# Features are an approximation, at equal rows; but they can see rows that the exact kernel never will.

X_test = rng.standard_normal((2000, 20)).astype("float32")
y_test = np.sin(X_test[:, 0]) * X_test[:, 1]
for name, model in models.items():
    print(f"{name}, {rows[name][-1]} rows: R² {model.score(X_test, y_test):.3f} on test rows")
few = models["1024 features"].fit(X[:4000], y[:4000])
print(f"1024 features, 4000 rows: R² {few.score(X_test, y_test):.3f} on test rows")
