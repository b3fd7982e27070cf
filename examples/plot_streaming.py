"""
Learning from a stream of rows
==============================

:class:`~ntkit.FeatureRidge` keeps sums over the rows, not the rows themselves.
``partial_fit`` adds a block of rows. Memory stays constant, and the result equals one
fit on all rows.
"""

import tracemalloc

import matplotlib.pyplot as plt
import numpy as np

from ntkit import FeatureRidge, NTKFeatures

# %%
# A stream
# --------
#
# The stream consists of synthetic blocks of 4000 rows. The test rows are another block.

rng = np.random.default_rng(0)


def block(n_rows=4000):
    """Return rows of five columns and noisy targets."""
    X = rng.standard_normal((n_rows, 5)).astype("float32")
    y = np.sin(X[:, 0]) * X[:, 1] + np.abs(X[:, 2]) + 0.1 * rng.standard_normal(n_rows)
    return X, y


X_test, y_test = block()

# %%
# Memory and error, block by block
# --------------------------------
#
# The model keeps sums whose size depends on the number of features, and a sample of
# rows for choosing the penalty. Below, each score solves for the weights again. In
# practice, add many blocks and then predict.

model = FeatureRidge(
    NTKFeatures(depth=2, n_components=256, bias="auto", random_state=0), random_state=0
)
# Load compiled code before measuring memory.
FeatureRidge(model.features, random_state=0).fit(X_test, y_test).predict(X_test)
rows, memory, errors = [], [], []
tracemalloc.start()
for _ in range(12):
    model.partial_fit(*block())
    errors.append(1 - model.score(X_test, y_test))
    rows.append(model.n_samples_seen_)
    memory.append(tracemalloc.get_traced_memory()[0] / 2**20)
tracemalloc.stop()

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.plot(rows, errors, marker="o")
left.set(xlabel="Rows seen", ylabel="1 − R² on test rows", ylim=(0, None))
right.plot(rows, memory, marker="o", label="measured, after each block")
right.plot(
    rows,
    [n * 256 * 4 / 2**20 for n in rows],
    "--",
    label="features of all rows, computed",
)
right.set(xlabel="Rows seen", ylabel="MiB", ylim=(0, None))
_ = right.legend()

# %%
# The same model in one fit
# -------------------------

rng = np.random.default_rng(1)
parts = [block() for _ in range(3)]
features = NTKFeatures(depth=2, n_components=256, bias="auto", random_state=0)
streamed = FeatureRidge(features, random_state=0)
for X, y in parts:
    streamed.partial_fit(X, y)
whole = FeatureRidge(features, random_state=0).fit(
    *(np.concatenate(part) for part in zip(*parts, strict=True))
)
difference = np.abs(streamed.predict(X_test) - whole.predict(X_test)).max()
print(
    f"penalties {streamed.alpha_:.4g} and {whole.alpha_:.4g}, "
    f"largest difference of predictions {difference:.1e}"
)
