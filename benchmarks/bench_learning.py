"""Learning at scale: one pass against BLAS, memory, accuracy on real data, the search over kernels, Dask, a GPU.

    python benchmarks/bench_learning.py fit        time of a fit / time of BLAS for ZᵀZ alone (200 000 rows)
    python benchmarks/bench_learning.py memory     peak memory of a fit on 10⁵ and 10⁶ rows
    python benchmarks/bench_learning.py precision  float32 sums over up to 10⁷ rows
    python benchmarks/bench_learning.py protein    four-fold mean squared errors beside the paper's Table 2
    python benchmarks/bench_learning.py mnist      MNIST in full
    python benchmarks/bench_learning.py rivals     on this CPU beside scikit-learn's RBFSampler + RidgeClassifier
    python benchmarks/bench_learning.py search     the search over kernels against single defaults, on nine tables
    python benchmarks/bench_learning.py dask       two worker processes against one
    python benchmarks/bench_learning.py blocks     what a block of rows costs: compute, statistics, merging
    python benchmarks/bench_learning.py device     a GPU

Data sets are those of ntkit.datasets ($NTKIT_DATA). Results go to benchmarks/results/learning.json under the
name of the question.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

import numpy as np

from common import RESULTS, memory_mib, reset_peak, versions

FILE = RESULTS / "learning.json"
TABLES = (
    "protein", "california_housing", "year_subset", "abalone",
    "magic04", "pendigits", "shuttle", "connect4", "mushroom",
)  # fmt: skip


def save(question, found):
    everything = json.loads(FILE.read_text()) if FILE.exists() else {}
    everything[question] = found
    FILE.write_text(json.dumps(everything, indent=1) + "\n")


def synthetic(n, d=90, seed=0):
    """Rows of the shape of YearPredictionMSD, and targets that depend on them."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d), dtype="float32")
    return X, np.abs(X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(n, dtype="float32")


def on_device(*arrays):
    """Rows as CUDA tensors where there is a GPU, else as they are."""
    import torch

    return [torch.from_numpy(a).cuda() for a in arrays] if torch.cuda.is_available() else list(arrays)


def to_numpy(values):
    return values.cpu().numpy() if hasattr(values, "cpu") else values


def syrk_seconds(m, n_rows=8192, rounds=3):
    """Seconds of BLAS for ZᵀZ, per row, float32."""
    from scipy.linalg import blas

    Z = np.random.default_rng(0).standard_normal((n_rows, m), dtype="float32")
    out = np.zeros((m, m), dtype="float32", order="F")
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        blas.ssyrk(1.0, Z.T, beta=1.0, c=out, overwrite_c=True)
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:])) / n_rows


def fit(n=200_000, m=4096):
    """Whole fits, features and the choice of α included, between measurements of BLAS."""
    from ntkit import FeatureRidge, NTKFeatures

    X, y = synthetic(n)
    found = []
    for method in ("polynomial", "random", "sketch"):
        for alphas in (1.0, None):
            model = FeatureRidge(
                NTKFeatures(depth=1, n_components=m, method=method, random_state=0), alphas=alphas, random_state=0
            )
            model.fit(X[:6000], y[:6000])
            before = syrk_seconds(m)
            start = time.perf_counter()
            model.fit(X, y)
            seconds = time.perf_counter() - start
            blas = n * (before + syrk_seconds(m)) / 2
            start = time.perf_counter()
            for i in range(0, 32768, 8192):
                model.features_.transform(X[i : i + 8192])
            features = (time.perf_counter() - start) * n / 32768
            row = {"map": method, "alphas": "one" if alphas else "path", "n": n, "m": m, "seconds": seconds}
            row |= {"blas_seconds": blas, "ratio": seconds / blas, "features_over_blas": features / blas}
            row["factorizations"] = int(np.isfinite(model.errors_).sum())
            found.append(row)
            save("fit", found)
            print(f"{method:10} {row['alphas']:5} {seconds:6.1f} s, BLAS {blas:.1f} s: {row['ratio']:.2f}", flush=True)


def memory(sizes=(100_000, 1_000_000), m=2048):
    """Peak memory beyond the start, of streams whose rows are made block by block."""
    code = (
        "import sys; sys.path.insert(0, 'benchmarks'); from bench_learning import memory_of;"
        "memory_of(int(sys.argv[1]), int(sys.argv[2]))"
    )
    found = []
    for n in sizes:
        result = subprocess.run(
            [sys.executable, "-c", code, str(n), str(m)], capture_output=True, text=True, check=True
        )
        found.append({"n": n, "m": m, **json.loads(result.stdout.splitlines()[-1])})
        print(found[-1], flush=True)
        save("memory", found)


def memory_of(n, m):
    from ntkit import FeatureRidge, NTKFeatures

    class Stream:
        def __iter__(self):
            for start in range(0, n, 10_000):
                yield synthetic(10_000, seed=start)

    model = FeatureRidge(NTKFeatures(depth=1, n_components=m, random_state=0), random_state=0)
    model.fit(*synthetic(m + 100))
    reset_peak()
    before = memory_mib("VmRSS")
    start = time.perf_counter()
    model.fit(Stream())
    print(json.dumps({"peak_mib": memory_mib() - before, "seconds": time.perf_counter() - start}))


def protein(m=8192, folds=4):
    """Four folds, as in Table 2 of the paper; α by leave-one-out inside the training folds."""
    from sklearn.model_selection import KFold
    from sklearn.preprocessing import StandardScaler

    from ntkit import FeatureRidge, NTKFeatures, RandomFourierFeatures
    from ntkit.datasets import load_dataset

    data = load_dataset("protein")
    X, y = data.X, data.y
    d = X.shape[1]
    maps = {
        "NTKRandomFeatures L=1": NTKFeatures(depth=1, n_components=m, method="random"),
        "NTKSketch L=1": NTKFeatures(depth=1, n_components=m, method="sketch"),
        "NTKPolynomialSketch L=1": NTKFeatures(depth=1, n_components=m),
        "NTKRandomFeatures L=1, bias": NTKFeatures(depth=1, n_components=m, method="random", bias="auto"),
        "NTKSketch L=1, bias": NTKFeatures(depth=1, n_components=m, method="sketch", bias="auto"),
        "NTKPolynomialSketch L=1, bias": NTKFeatures(depth=1, n_components=m, bias="auto"),
        "NTKPolynomialSketch L=3, bias": NTKFeatures(depth=3, n_components=m, bias="auto"),
        "RandomFourierFeatures, scale": RandomFourierFeatures(n_components=m, lengthscale="scale"),
        "RandomFourierFeatures, 0.3 scale": RandomFourierFeatures(n_components=m, lengthscale=0.3 * (d / 2) ** 0.5),
    }
    found = []
    for name, features in maps.items():
        errors, seconds = [], []
        for fold, (train, test) in enumerate(KFold(folds, shuffle=True, random_state=0).split(X)):
            features.set_params(random_state=fold)
            scaler = StandardScaler().fit(X[train])
            rows, others = on_device(scaler.transform(X[train]), scaler.transform(X[test]))
            start = time.perf_counter()
            model = FeatureRidge(features, random_state=0).fit(rows, y[train])
            errors.append(float(np.mean((to_numpy(model.predict(others)) - y[test]) ** 2)))
            seconds.append(time.perf_counter() - start)
        found.append({"map": name, "m": m, "mse": errors, "seconds": seconds})
        save("protein", found)
        print(f"{name:34} {np.mean(errors):.2f} ± {np.std(errors):.2f}  {np.mean(seconds):.0f} s a fold", flush=True)


def blurred(images, sigma):
    """Images smoothed by a Gaussian of `sigma` pixels, as rows of norm 1."""
    from scipy.ndimage import gaussian_filter1d

    X = images.reshape(len(images), 28, 28).astype("float32") / 255
    if sigma:
        X = gaussian_filter1d(gaussian_filter1d(X, sigma, axis=1, mode="constant"), sigma, axis=2, mode="constant")
    X = X.reshape(len(images), -1)
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def mnist(sizes=(4096, 8192, 16384)):
    """Depth, length scale and blur by 10 000 training rows held back, at m = 2048; then all rows, tested once."""
    from ntkit import FeatureRidgeClassifier, NTKFeatures, RandomFourierFeatures
    from ntkit.datasets import load_dataset

    data = load_dataset("mnist")
    families = {
        "NTKFeatures": [NTKFeatures(depth=depth) for depth in (1, 2, 3)],
        "RandomFourierFeatures": [RandomFourierFeatures(lengthscale=s) for s in (0.35, 0.5, 0.7)],
    }
    found = {"chosen": {}, "results": []}
    for family, maps in families.items():
        held = {}
        for sigma in (0.0, 0.7, 1.0):
            (X,) = on_device(blurred(data.X, sigma))
            for number, features in enumerate(maps):
                features.set_params(n_components=2048, random_state=0)
                model = FeatureRidgeClassifier(features, random_state=0).fit(X[:50000], data.y[:50000])
                held[sigma, number] = float(np.mean(to_numpy(model.predict(X[50000:])) != data.y[50000:]))
                print(family, sigma, features, held[sigma, number], flush=True)
        for blur in (False, True):
            sigma, number = min((key for key in held if bool(key[0]) == blur), key=held.__getitem__)
            features = maps[number]
            found["chosen"][f"{family}, blur {sigma}"] = str(features)
            X, X_test = on_device(blurred(data.X, sigma), blurred(data.X_test, sigma))
            for m in sizes:
                features.set_params(n_components=m)
                start = time.perf_counter()
                model = FeatureRidgeClassifier(features, random_state=0).fit(X, data.y)
                seconds = time.perf_counter() - start
                accuracy = float(np.mean(to_numpy(model.predict(X_test)) == data.y_test))
                row = {"model": family, "blur": sigma, "m": m, "accuracy": accuracy, "fit_seconds": seconds}
                found["results"].append(row | {"features": str(features), "alpha": model.alpha_})
                save("mnist", found)
                print(row, flush=True)


def rivals(m=4096, sigma=0.7, lengthscale=0.5):
    """Time and accuracy on all of MNIST beside scikit-learn's RBFSampler + RidgeClassifier, on this CPU."""
    from sklearn.kernel_approximation import RBFSampler
    from sklearn.linear_model import RidgeClassifier
    from sklearn.pipeline import make_pipeline

    from ntkit import FeatureRidgeClassifier, NTKFeatures, RandomFourierFeatures
    from ntkit.datasets import load_dataset

    data = load_dataset("mnist")
    X, X_test = blurred(data.X, sigma), blurred(data.X_test, sigma)
    gamma = 1 / (2 * lengthscale**2)
    models = {
        "NTKFeatures + FeatureRidgeClassifier, α chosen": FeatureRidgeClassifier(
            NTKFeatures(depth=3, n_components=m, random_state=0), random_state=0
        ),
        "RandomFourierFeatures + FeatureRidgeClassifier, α chosen": FeatureRidgeClassifier(
            RandomFourierFeatures(n_components=m, lengthscale=lengthscale, random_state=0), random_state=0
        ),
        "RBFSampler + RidgeClassifier, one α": make_pipeline(
            RBFSampler(gamma=gamma, n_components=m, random_state=0), RidgeClassifier(alpha=0.1)
        ),
    }
    found = []
    for name, model in models.items():
        model.fit(X[:6000], data.y[:6000])
        reset_peak()
        before = memory_mib("VmRSS")
        start = time.perf_counter()
        model.fit(X, data.y)
        row = {"model": name, "m": m, "fit_seconds": time.perf_counter() - start, "peak_mib": memory_mib() - before}
        start = time.perf_counter()
        row["accuracy"] = float(np.mean(model.predict(X_test) == data.y_test))
        row["predict_seconds"] = time.perf_counter() - start
        found.append(row)
        save("rivals", found)
        print(row, flush=True)


def search(m=2048, seeds=range(3), budget=60.0, tables=TABLES):
    """Test errors on a fifth of the rows: the search, and what single defaults give with their α path."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    import ntkit
    from ntkit.datasets import load_dataset

    found = []
    for table in tables:
        data = load_dataset(table)
        X, y = data.X, data.y
        if data.X_test is not None:
            X, y = np.concatenate([X, data.X_test]), np.concatenate([y, data.y_test])
        regression = data.task == "regression"
        ridge = ntkit.FeatureRidge if regression else ntkit.FeatureRidgeClassifier
        searcher = ntkit.FeatureRidgeSearch if regression else ntkit.FeatureRidgeSearchClassifier
        for seed in seeds:
            order = np.random.default_rng(seed).permutation(len(X))
            test, train = order[: len(X) // 5], order[len(X) // 5 :]
            maps = {
                "NTK L=1": ntkit.NTKFeatures(depth=1, n_components=m, random_state=seed),
                "NTK L=1, bias": ntkit.NTKFeatures(depth=1, n_components=m, bias="auto", random_state=seed),
                "NTK L=3, bias": ntkit.NTKFeatures(depth=3, n_components=m, bias="auto", random_state=seed),
                "Gaussian, scale": ntkit.RandomFourierFeatures(n_components=m, random_state=seed),
                "linear": "passthrough",
            }
            models = {
                name: ridge(make_pipeline(StandardScaler(), features), random_state=seed)
                for name, features in maps.items()
            }
            models["FeatureRidge()"] = ridge(
                make_pipeline(
                    ntkit.ArcsinhScaler(), ntkit.NTKFeatures(depth=1, n_components=m, bias="auto", random_state=seed)
                ),
                random_state=seed,
            )
            models["search"] = searcher(m, budget, random_state=seed)
            row = {"table": table, "seed": seed, "m": m, "errors": {}, "seconds": {}}
            for name, model in models.items():
                start = time.perf_counter()
                model.fit(X[train], y[train])
                row["seconds"][name] = time.perf_counter() - start
                prediction = model.predict(X[test])
                error = np.mean((prediction - y[test]) ** 2) if regression else np.mean(prediction != y[test])
                row["errors"][name] = float(error)
            row["chosen"], row["fits"] = models["search"].best_name_, len(models["search"].results_)
            found.append(row)
            save("search", found)
            text = "  ".join(f"{name} {error:.4g}" for name, error in row["errors"].items())
            print(f"{table:18} {text}  [{row['chosen']}, {row['seconds']['search']:.0f} s]", flush=True)


def dask(n=200_000, m=2048, chunk=10_000):
    """The same fit on one worker process and on two, a thread each; the local fit with one thread beside them."""
    from dask import array
    from distributed import Client, LocalCluster

    from ntkit import FeatureRidge, NTKFeatures

    X, y = synthetic(n)
    found = []
    for workers in (1, 2, 1, 2):
        cluster = LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None)
        with cluster, Client(cluster) as client:
            rows, targets = (client.persist(array.from_array(a, chunks=(chunk, *a.shape[1:]))) for a in (X, y))
            model = FeatureRidge(NTKFeatures(depth=1, n_components=m, random_state=0), alphas=1.0, random_state=0)
            model.fit(rows[: 4 * chunk], targets[: 4 * chunk])  # compiled code loads
            start = time.perf_counter()
            model.fit(rows, targets)
            row = {"workers": workers, "n": n, "m": m, "chunk": chunk, "seconds": time.perf_counter() - start}
        found.append(row)
        save("dask", found)
        print(row, flush=True)


def blocks(sizes=(4096, 16384), n_rows=16384):
    """Seconds and bytes of one block: features, sums, the statistics it becomes, merging two of these."""
    import pickle

    from ntkit import NTKFeatures
    from ntkit.models._statistics import Statistics

    found = []
    for m in sizes:
        n_rows = max(n_rows, m + 4096)  # fewer would be kept as they are
        X, y = synthetic(n_rows)
        features = NTKFeatures(depth=1, n_components=m, random_state=0).fit(X)
        features.transform(X[:1000])
        start = time.perf_counter()
        for i in range(0, n_rows, 2048):
            features.transform(X[i : i + 2048])
        mapped = time.perf_counter() - start
        reset_peak()
        before = memory_mib("VmRSS")
        start = time.perf_counter()
        parts = []
        for seed in range(2):
            part = Statistics(m, 1, 1000)
            for i in range(0, n_rows, 2048):
                Z = features.transform(X[i : i + 2048])
                keys = np.random.default_rng(seed).random(2048)
                part.add(Z, y[i : i + 2048, None].astype("float64"), np.ones(2048), keys)
            parts.append(part.finish())
        reduced = (time.perf_counter() - start) / 2
        start = time.perf_counter()
        parts[0].merge(parts[1])
        merged = time.perf_counter() - start
        row = {"m": m, "rows": n_rows, "map_seconds": mapped, "map_and_sum_seconds": reduced, "merge_seconds": merged}
        row |= {"statistics_bytes": len(pickle.dumps(parts[1], protocol=5)), "peak_mib": memory_mib() - before}
        found.append(row)
        save("blocks", found)
        print(row, flush=True)


def precision(sizes=(10**5, 10**6, 10**7), m=32):
    """Relative error of the centred sums of float32 features with means of 100 deviations, against float64."""
    from ntkit.models._statistics import Statistics

    found = []
    for n in sizes:
        part, exact = Statistics(m, 1), Statistics(m, 1)
        for start in range(0, n, 10**5):
            rng = np.random.default_rng(start)
            Z = (rng.standard_normal((10**5, m), dtype="float32") + 100).astype("float32")
            Y = Z[:, :1].astype("float64") * 0.01 + rng.standard_normal((10**5, 1))
            weight, keys = np.ones(10**5), np.zeros(10**5)
            exact.add(Z.astype("float64"), Y, weight, keys)
            for i in range(0, 10**5, 10**4):
                rows = slice(i, i + 10**4)
                part.add(Z[rows].copy(), Y[rows], weight[rows], keys[rows])
        G, H = (np.tril(s.finish().gram) for s in (part, exact))
        row = {"n": n, "m": m, "gram_error": float(np.abs(G - H).max() / np.abs(H).max())}
        row["cross_error"] = float(np.abs(part.cross - exact.cross).max() / np.abs(exact.cross).max())
        row["mean_error"] = float(np.abs(part.z_mean - exact.z_mean).max() / 100)
        found.append(row)
        save("precision", found)
        print(row, flush=True)


def device(n=200_000):
    """Whole fits on a CUDA device beside its float64 product alone."""
    import torch

    from ntkit import FeatureRidge, NTKFeatures

    X, y = (torch.from_numpy(a).cuda() for a in synthetic(n))
    found = []
    for m in (4096, 16384):
        Z = torch.randn(16384, m, device="cuda", dtype=torch.float64)
        out = torch.zeros(m, m, device="cuda", dtype=torch.float64)
        for alphas in (1.0, None):
            model = FeatureRidge(NTKFeatures(depth=1, n_components=m, random_state=0), alphas=alphas, random_state=0)
            model.fit(X[:50000], y[:50000])
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(n // 16384):
                out.addmm_(Z.T, Z)
            torch.cuda.synchronize()
            product = (time.perf_counter() - start) * n / (n // 16384 * 16384)
            torch.cuda.reset_peak_memory_stats()
            start = time.perf_counter()
            model.fit(X, y)
            torch.cuda.synchronize()
            row = {"m": m, "n": n, "alphas": "one" if alphas else "path", "seconds": time.perf_counter() - start}
            row |= {"product_seconds": product, "peak_gib": torch.cuda.max_memory_allocated() / 2**30}
            row["factorizations"] = int(np.isfinite(model.errors_).sum())
            found.append(row)
            print(row, flush=True)
    return found


QUESTIONS = {f.__name__: f for f in (fit, memory, precision, protein, mnist, rivals, search, dask, blocks, device)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=QUESTIONS)
    question = parser.parse_args().question
    if question == "device":
        print(json.dumps({"versions": versions("cuda"), "results": device()}))
    else:
        save("versions", versions())
        QUESTIONS[question]()
