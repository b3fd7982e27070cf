"""
The memory wall
===============

A kernel matrix of n rows has n² entries, and solving with it takes time proportional to
n³. Features have n · m entries and are computed block by block. A model on features
keeps m² numbers, whatever the number of rows.
"""

import time

import matplotlib.pyplot as plt
import numpy as np

from ntkit import FeatureRidge, KernelRidge, NTKFeatures

# %%
# Measured
# --------
#
# We fit the same problem twice: ridge regression with the exact NTK of depth 2, by a
# factorization of the matrix, and with 1024 features of this kernel.

rng = np.random.default_rng(0)
n_components = 1024
rows = {
    "exact kernel": [500, 1000, 2000, 4000],
    "1024 features": [2000, 4000, 8000, 16000],
}
X = rng.standard_normal((16000, 20)).astype("float32")
y = np.sin(X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(len(X))
models = {
    "exact kernel": KernelRidge("ntk", alphas=1.0, depth=2, solver="direct"),
    "1024 features": FeatureRidge(
        NTKFeatures(depth=2, n_components=n_components, random_state=0),
        alphas=1.0,
        random_state=0,
    ),
}
seconds = {}
for name, model in models.items():
    model.fit(X[:1200], y[:1200])  # load compiled code before the timing
    seconds[name] = []
    for n in rows[name]:
        start = time.perf_counter()
        model.fit(X[:n], y[:n])
        seconds[name].append(time.perf_counter() - start)

# %%
# Extrapolated
# ------------
#
# Solid lines and points were measured on the machine that built this page. Dashed lines
# extrapolate from the last point: with n for features, and with n³ for the exact
# kernel. At first, n³ is slightly too steep, because computing the matrix still takes
# part of the time. Memory is calculated: 8 n² bytes for the matrix, and an upper bound
# for features, 20 m² bytes and a block of 256 MiB. (An iterative solver takes n² time
# instead of n³. It either keeps n² kernel values in memory or computes them again in
# each iteration.)

ends = np.geomspace(1e3, 1e7, 100)
memory = {
    "exact kernel": 8 * ends**2,
    "1024 features": np.full_like(ends, 20.0 * n_components**2 + 2**28),
}
growth = {"exact kernel": 3, "1024 features": 1}
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
for (name, values), colour in zip(seconds.items(), ("black", "C0"), strict=True):
    last, slowest = rows[name][-1], values[-1]
    left.loglog(rows[name], values, marker="o", color=colour, label=f"{name}, measured")
    on = ends[ends >= last]
    left.loglog(
        on,
        slowest * (on / last) ** growth[name],
        "--",
        color=colour,
        label=f"{name}, extrapolated",
    )
    right.loglog(
        ends, memory[name] / 2**30, "--", color=colour, label=f"{name}, computed"
    )
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
# Accuracy
# --------
#
# Features only approximate the kernel. But they can use more rows than the exact kernel
# could ever handle.

X_test = rng.standard_normal((2000, 20)).astype("float32")
y_test = np.sin(X_test[:, 0]) * X_test[:, 1]
for name, model in models.items():
    print(f"{name}, {rows[name][-1]} rows: test R² {model.score(X_test, y_test):.3f}")
few = models["1024 features"].fit(X[:4000], y[:4000])
print(f"1024 features, 4000 rows: test R² {few.score(X_test, y_test):.3f}")
