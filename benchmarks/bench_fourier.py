"""Fourier features of the Gaussian kernel beside scikit-learn's RBFSampler: time, memory and error.

    python benchmarks/bench_fourier.py            all sizes, into results/fourier.json
    python benchmarks/bench_fourier.py --quick    a few small ones, printed alone

4096 rows of independent normal entries, d features, γ = 1/(2ℓ²) = 1/d as with ``gamma="scale"``. Times of `fit` and
`transform` are medians of rounds in which the contestants take turns; memory is the peak of one `transform` beyond
rows and map, in a fresh process (the result is in it); errors ‖ZZᵀ − K‖_F/‖K‖_F are over 1000 rows, for several seeds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import numpy as np

from common import RESULTS, medians, memory_mib, reset_peak, versions

FEATURES = (16, 128, 1024, 4096)
COMPONENTS = (1024, 4096)
ROWS, FEW = 4096, 1000
SEEDS = 5
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
    return kinds[name](m, lengthscale=(d / 2) ** 0.5, random_state=seed)


def compare(d, m, dtype, *, n, seeds, rounds):
    from ntkit.kernels import gaussian

    X, few = rows(n, d, dtype), rows(min(n, FEW), d, dtype)
    K = gaussian(few.astype("float64"), lengthscale=(d / 2) ** 0.5)
    fitted = {name: make(name, d, m).fit(X) for name in MAPS}
    fits = medians({name: lambda f=f: f.fit(few) for name, f in fitted.items()}, min(rounds, 3))
    times = medians({name: lambda f=f: f.transform(X) for name, f in fitted.items()}, rounds)
    found = []
    for name in MAPS:
        errors = []
        for seed in range(seeds):
            Z = make(name, d, m, seed).fit(few).transform(few).astype("float64")
            errors.append(float(np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K)))
        row = {"map": name, "n_features": d, "n_components": m, "dtype": dtype, "rows": n}
        row |= {"fit_seconds": fits[name], "seconds": times[name], "times_faster": times[MAPS[0]] / times[name]}
        row |= {"peak_mib": apart(name, d, m, dtype, n), "error": errors}
        found.append(row)
        print(
            f"{dtype} d={d:4} m={m:4} {name:26}: {1000 * times[name]:7.1f} ms ({row['times_faster']:5.2f}× faster), "
            f"fit {1000 * fits[name]:7.1f} ms, {row['peak_mib']:6.1f} MiB, error {np.mean(errors):.4f}", flush=True
        )  # fmt: skip
    return found


def apart(*case):
    """Peak memory in MiB of one transform in a fresh process."""
    command = [sys.executable, __file__, "peak", *map(str, case)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def peak(name, d, m, dtype, n):
    X = rows(int(n), int(d), dtype)
    mapping = make(name, int(d), int(m)).fit(X)
    mapping.transform(X[:64])
    before = memory_mib("VmRSS")
    reset_peak()
    mapping.transform(X)
    print(memory_mib() - before)


def main():
    if sys.argv[1:2] == ["peak"]:
        peak(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="few sizes, rows, seeds and rounds; nothing is saved")
    arguments = parser.parse_args()
    sizes = {"n": 512, "seeds": 2, "rounds": 2} if arguments.quick else {"n": ROWS, "seeds": SEEDS}
    sizes = {"rounds": arguments.rounds} | sizes
    found = []
    for dtype in ("float32", "float64"):
        for d in FEATURES[:3:2] if arguments.quick else FEATURES:
            for m in COMPONENTS[:1] if arguments.quick else COMPONENTS:
                found += compare(d, m, dtype, **sizes)
    if not arguments.quick:
        content = {"versions": versions(), "fourier": found}
        (RESULTS / "fourier.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
