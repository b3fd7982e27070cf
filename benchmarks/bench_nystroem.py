"""Nyström features compared with scikit-learn's Nystroem: error by size and landmarks, time of fit and transform.

`errors` compares all kinds of landmarks on clustered rows and on standardized protein. `times` measures fit and
transform of all rows of protein in float32, with peak memory. The clustered rows are unbalanced: nine tenths are in two
tight clusters, the others in fifty wide ones. Errors are over 2000 rows: ‖ZZᵀ − K‖_F/‖K‖_F, ‖ZZᵀ − K‖₂/‖K‖₂ and, for
the first seed, the spectral ε at λ = 10⁻³‖K‖. The length scale is the default for protein, and a distance within the
wide clusters for clustered rows. scikit-learn has no NTK and calls kernel functions for each pair of rows, so its
Nystroem is reimplemented here with ntkit's exact kernel.
"""

from __future__ import annotations

import time

import numpy as np

from experiment import Question, added_mib, apart, ask, dataset, grid, main, medians

TITLE = "Nyström features: error, time and memory compared with scikit-learn"
KERNELS = ("gaussian", "ntk")
LANDMARKS = ("leverage", "uniform", "kmeans")
METHODS = ("scikit-learn", *LANDMARKS)


def rows(name, n=None):
    """Return `n` random rows of a data set in float64 (None: all rows)."""
    rng = np.random.default_rng(0)
    if name == "clusters":
        share = np.r_[0.8, 0.1, np.full(50, 0.1 / 50)]
        label = rng.choice(52, n, p=share / share.sum())
        centres = 6 * rng.standard_normal((52, 10))
        return centres[label] + np.where(label < 2, 0.3, 1.0)[:, None] * rng.standard_normal((n, 10))
    X = dataset("protein").X.astype("float64")
    X = (X - X.mean(0)) / X.std(0)
    return X if n is None else X[rng.choice(len(X), n, replace=False)]


def lengthscale(name, X):
    return 4.5 if name == "clusters" else float(np.sqrt(X.shape[1] * X.var() / 2))


def make(who, kernel, m, length, seed=0):
    from sklearn.kernel_approximation import Nystroem

    from ntkit.features.landmarks.nystroem import NystroemFeatures
    from ntkit.kernels import ntk

    if who in LANDMARKS:
        return NystroemFeatures(kernel, n_components=m, landmarks=who, lengthscale=length, random_state=seed)
    if kernel == "gaussian":
        return Nystroem(kernel="rbf", gamma=0.5 / length**2, n_components=m, random_state=seed)
    return _NystroemOfFunction(lambda X, Y=None: ntk(X, Y, depth=1), m, seed)


class _NystroemOfFunction:
    """scikit-learn's Nystroem with a kernel function of whole matrices."""

    def __init__(self, function, m, seed):
        self.function, self.m, self.seed = function, m, seed

    def fit(self, X):
        chosen = np.random.RandomState(self.seed).permutation(len(X))[: self.m]
        self.components_ = X[chosen]
        U, S, V = np.linalg.svd(self.function(self.components_))
        self.normalization_ = (U / np.sqrt(np.maximum(S, 1e-12))) @ V
        return self

    def transform(self, X):
        return self.function(X, self.components_) @ self.normalization_.T


def error_cases(args):
    sizes, n, seeds = ((64,), 500, 2) if args.quick else ((64, 128, 256, 512, 1024), 2000, 5)
    return grid(data="clusters" if args.quick else ("clusters", "protein"), kernel=KERNELS, m=sizes, n=n, seeds=seeds)


def errors(data, kernel, m, n, seeds):
    from scipy.sparse.linalg import eigsh

    from ntkit.diagnostics import spectral_error
    from ntkit.kernels import gram

    X = rows(data, n)
    length = lengthscale(data, X)
    K = gram(kernel, X, **({"lengthscale": length} if kernel == "gaussian" else {"depth": 1}))
    size, top = np.linalg.norm(K), float(eigsh(K, 1, return_eigenvectors=False)[0])
    found = {}
    for who in METHODS:
        row = {"frobenius": [], "spectral": [], "epsilon": [], "fit_seconds": [], "transform_seconds": []}
        for seed in range(seeds):
            start = time.perf_counter()
            mapping = make(who, kernel, m, length, seed).fit(X)
            middle = time.perf_counter()
            Z = mapping.transform(X)
            row["transform_seconds"].append(time.perf_counter() - middle)
            row["fit_seconds"].append(middle - start)
            E = Z @ Z.T - K
            row["frobenius"].append(float(np.linalg.norm(E) / size))
            row["spectral"].append(float(abs(eigsh(E, 1, tol=1e-3, return_eigenvectors=False)[0]) / top))
            if not seed:  # takes as long as everything else together
                row["epsilon"].append(spectral_error(K, Z, 1e-3 * top))
        found[who] = row
    return {"methods": found}


def time_cases(args):
    return grid(kernel="gaussian", m=64, rounds=1) if args.quick else grid(kernel=KERNELS, m=(256, 1024), rounds=5)


def times(kernel, m, rounds):
    X = rows("protein").astype("float32")  # scikit-learn's pairwise kernels preserve float32 too
    maps = {who: make(who, kernel, m, lengthscale("protein", X)).fit(X) for who in METHODS}
    fits = medians({who: lambda f=f: f.fit(X) for who, f in maps.items()}, rounds)
    runs = medians({who: lambda f=f: f.transform(X) for who, f in maps.items()}, rounds)
    found = {who: {"fit_seconds": fits[who], "transform_seconds": runs[who]} for who in METHODS}
    for who, row in found.items():
        row |= {"seconds": fits[who] + runs[who], "peak_mib": apart(peak, who, kernel, m)}
    return {"rows": len(X), "methods": found}


def peak(who, kernel, m):
    """Return the MiB that one fit and transform add to the rows."""
    X = rows("protein").astype("float32")
    mapping = make(who, kernel, m, lengthscale("protein", X))
    mapping.fit(X[: m + 64]).transform(X[:64])
    return added_mib(lambda: mapping.fit(X).transform(X))


QUESTIONS = {
    "errors": Question(
        "Errors by landmarks", error_cases, errors,
        "data kernel m method frobenius:.2e frobenius/:.2f spectral:.2e epsilon:.3f fit_seconds:.3f",
    ),
    "times": Question(
        "Time and memory, all rows of protein", time_cases, times,
        "kernel m method fit_seconds:.3f transform_seconds:.3f seconds/:.2f peak_mib:.0f",
    ),
}  # fmt: skip
cases, measure, report = ask(QUESTIONS)


if __name__ == "__main__":
    main(__name__)
