"""Fourier features of the Gaussian kernel compared with scikit-learn's RBFSampler: time, memory and error.

There are 4096 rows of d independent normal entries; γ = 1/(2ℓ²) = 1/d as with ``gamma="scale"``. Times of `fit` and
`transform` are medians of rounds in which the methods take turns. Memory is what one `transform`, with its result, adds
to rows and map in a fresh process. Errors are ‖ZZᵀ − K‖_F/‖K‖_F over 1000 rows, for several seeds.
"""

from __future__ import annotations

import numpy as np

from experiment import added_mib, apart, grid, main, medians, table

TITLE = "Fourier features of the Gaussian kernel: time, memory and error"
FEW = 1000  # rows on which errors are measured
MAPS = ("RBFSampler", "RandomFourierFeatures", "OrthogonalFourierFeatures", "FastfoodFeatures")


def rows(n, d, dtype):
    return np.random.default_rng(0).standard_normal((n, d)).astype(dtype)


def make(name, d, m, seed=0):
    from sklearn.kernel_approximation import RBFSampler

    from ntkit.features.fourier import OrthogonalFourierFeatures, RandomFourierFeatures
    from ntkit.features.fourier.fastfood import FastfoodFeatures

    if name == "RBFSampler":
        return RBFSampler(gamma=1 / d, n_components=m, random_state=seed)
    kinds = {kind.__name__: kind for kind in (RandomFourierFeatures, OrthogonalFourierFeatures, FastfoodFeatures)}
    return kinds[name](n_components=m, lengthscale=(d / 2) ** 0.5, random_state=seed)


def cases(args):
    if args.quick:
        return grid(dtype="float32", d=64, m=256, n=512, seeds=2, rounds=2)
    return grid(dtype=("float32", "float64"), d=(16, 128, 1024, 4096), m=(1024, 4096), n=4096, seeds=5, rounds=7)


def measure(dtype, d, m, n, seeds, rounds):
    from ntkit.kernels import gaussian

    X, few = rows(n, d, dtype), rows(min(n, FEW), d, dtype)
    K = gaussian(few.astype("float64"), lengthscale=(d / 2) ** 0.5)
    fitted = {name: make(name, d, m).fit(X) for name in MAPS}
    fits = medians({name: lambda f=f: f.fit(few) for name, f in fitted.items()}, min(rounds, 3))
    times = medians({name: lambda f=f: f.transform(X) for name, f in fitted.items()}, rounds)
    found = {}
    for name in MAPS:
        errors = []
        for seed in range(seeds):
            Z = make(name, d, m, seed).fit(few).transform(few).astype("float64")
            errors.append(float(np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K)))
        found[name] = {"fit_seconds": fits[name], "seconds": times[name], "error": errors}
        found[name]["peak_mib"] = apart(peak, name, d, m, dtype, n)
    return {"methods": found}


def peak(name, d, m, dtype, n):
    X = rows(n, d, dtype)
    mapping = make(name, d, m).fit(X)
    mapping.transform(X[:64])
    return added_mib(lambda: mapping.transform(X))


def report(runs):
    return table(runs, "dtype d m method fit_seconds:.4f seconds:.4f seconds/:.2f peak_mib:.1f error:.4f")


if __name__ == "__main__":
    main(__name__)
