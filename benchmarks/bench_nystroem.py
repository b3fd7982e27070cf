"""Nyström features: error against size and landmarks, time of fit and transform, beside scikit-learn's Nystroem.

    python benchmarks/bench_nystroem.py errors      errors of all landmarks on clustered rows and protein
    python benchmarks/bench_nystroem.py times       fit and transform of all rows of protein, with peak memory

Data are read from $NTKIT_DATA (uci_protein.npz, standardized). The clustered rows are unbalanced: nine of ten in two
tight clusters, the others in fifty wide ones. Errors are over 2000 rows (1000 with --quick): ‖ZZᵀ − K‖_F/‖K‖_F,
‖ZZᵀ − K‖₂/‖K‖₂ and, for the first seed, the spectral ε at λ = 10⁻³‖K‖. The length scale is the default one for protein,
and a distance within the wide clusters for those. scikit-learn has no NTK, and calls functions on single pairs of rows:
what its Nystroem computes is written out for the exact kernel of ntkit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from common import RESULTS, medians, memory_mib, reset_peak, versions

SIZES = (64, 128, 256, 512, 1024)
SEEDS = 5
KERNELS = ("gaussian", "ntk")
LANDMARKS = ("leverage", "uniform", "kmeans")


def rows(name, n=None):
    """Rows of a data set, float64; `n` of them at random."""
    rng = np.random.default_rng(0)
    if name == "clusters":
        share = np.r_[0.8, 0.1, np.full(50, 0.1 / 50)]
        label = rng.choice(52, n, p=share / share.sum())
        centres = 6 * rng.standard_normal((52, 10))
        return centres[label] + np.where(label < 2, 0.3, 1.0)[:, None] * rng.standard_normal((n, 10))
    X = np.load(Path(os.environ["NTKIT_DATA"]) / "uci_protein.npz")["X"].astype("float64")
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
    return _WithFunction(lambda X, Y=None: ntk(X, Y, depth=1), m, seed)


class _WithFunction:
    """What scikit-learn's Nystroem computes, with a kernel function of whole matrices."""

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


def errors(sizes, seeds, n=2000):
    from scipy.sparse.linalg import eigsh

    from ntkit.diagnostics import spectral_error
    from ntkit.kernels import gram

    found = []
    for data in ("clusters", "protein"):
        X = rows(data, n)
        length = lengthscale(data, X)
        for kernel in KERNELS:
            K = gram(kernel, X, **({"lengthscale": length} if kernel == "gaussian" else {"depth": 1}))
            size, top = np.linalg.norm(K), float(eigsh(K, 1, return_eigenvectors=False)[0])
            for m in sizes:
                for who in (*LANDMARKS, "scikit-learn"):
                    row = {"data": data, "kernel": kernel, "n_components": m, "landmarks": who}
                    row |= {"frobenius": [], "spectral": [], "epsilon": [], "fit_seconds": [], "transform_seconds": []}
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
                        if not seed:  # it takes as long as all the rest
                            row["epsilon"].append(spectral_error(K, Z, 1e-3 * top))
                    found.append(row)
                    save("errors", found)
                    print(
                        f"{data:8} {kernel:8} m={m:5} {who:12}: Frobenius {np.mean(row['frobenius']):.2e}, spectral "
                        f"{np.mean(row['spectral']):.2e}, ε {row['epsilon'][0]:.3f}, fit "
                        f"{np.median(row['fit_seconds']):.3f} s", flush=True,
                    )  # fmt: skip
    return found


def times(sizes, rounds):
    """All rows of protein, float32 for ntkit (scikit-learn's pairwise kernels keep it too)."""
    X = rows("protein").astype("float32")
    length = lengthscale("protein", X)
    found = []
    for kernel in KERNELS:
        for m in sizes:
            maps = {who: make(who, kernel, m, length).fit(X) for who in (*LANDMARKS, "scikit-learn")}
            fits = medians({who: lambda f=f: f.fit(X) for who, f in maps.items()}, rounds)
            runs = medians({who: lambda f=f: f.transform(X) for who, f in maps.items()}, rounds)
            for who in maps:
                row = {"kernel": kernel, "n_components": m, "landmarks": who, "rows": len(X)}
                row |= {"fit_seconds": fits[who], "transform_seconds": runs[who], "peak_mib": apart(who, kernel, m)}
                row["of_scikit_learn"] = (fits[who] + runs[who]) / (fits["scikit-learn"] + runs["scikit-learn"])
                found.append(row)
                print(json.dumps(row), flush=True)
            save("times", found)


def apart(who, kernel, m):
    """Peak memory in MiB beyond the rows of one fit and transform in a fresh process."""
    command = [sys.executable, __file__, "peak", who, kernel, str(m)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def peak(who, kernel, m):
    X = rows("protein").astype("float32")
    mapping = make(who, kernel, int(m), lengthscale("protein", X))
    mapping.fit(X[: int(m) + 64]).transform(X[:64])
    before = memory_mib("VmRSS")
    reset_peak()
    mapping.fit(X).transform(X)
    print(memory_mib() - before)


def save(key, found):
    path = RESULTS / "nystroem.json"
    content = json.loads(path.read_text()) if path.exists() else {}
    content |= {"versions": versions(), key: found}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def main():
    if sys.argv[1:2] == ["peak"]:
        peak(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=["errors", "times"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="few sizes and seeds")
    arguments = parser.parse_args()
    if arguments.question == "errors":
        errors(*((SIZES[::3], 2, 1000) if arguments.quick else (SIZES, SEEDS)))
    else:
        times((256,) if arguments.quick else (256, 1024), 1 if arguments.quick else arguments.rounds)


if __name__ == "__main__":
    main()
