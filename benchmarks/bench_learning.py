"""Learning at scale: time compared with BLAS, memory, accuracy on real data, the search over kernels, Dask, a GPU.

`fit` times a whole fit, including features and the choice of α, and BLAS for ZᵀZ alone; on a GPU (--device cuda), the
float64 product. `protein` and `mnist` also run on a GPU. `memory` fits streams whose rows are generated block by block.
`precision` measures errors of float32 sums over up to 10⁷ rows, `blocks` the cost of a block of rows on a cluster.
"""

from __future__ import annotations

import pickle
import time

import numpy as np

from experiment import DEVICES, Meter, Question, apart, ask, dataset, grid, main, on_device, to_numpy

TITLE = "Learning at scale: time, memory and accuracy of whole fits"
TABLES = (
    "protein", "california_housing", "year_subset", "abalone",
    "magic04", "pendigits", "shuttle", "connect4", "mushroom",
)  # fmt: skip


def synthetic(n, d=90, seed=0):
    """Return synthetic rows with the shape of YearPredictionMSD, and targets that depend on them."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d), dtype="float32")
    return X, np.abs(X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(n, dtype="float32")


# Whole fits.


def fit_cases(args):
    n, m = (10_000, 256) if args.quick else (200_000, 4096)
    if args.device == "cuda":
        sizes = m if args.quick else (4096, 16384)
        return grid(features="polynomial", m=sizes, alphas=("one", "path"), n=n, device="cuda")
    return grid(features=("polynomial", "random", "sketch"), m=m, alphas=("one", "path"), n=n, device="cpu")


def fit(features, m, alphas, n, device):
    from ntkit import FeatureRidge, NTKFeatures

    X, y = on_device(device, *synthetic(n))
    feature_map = NTKFeatures(depth=1, n_components=m, method=features, random_state=0)
    model = FeatureRidge(feature_map, alphas=1.0 if alphas == "one" else None, random_state=0)
    model.fit(X[: m + 2000], y[: m + 2000])
    product = syrk_seconds if device == "cpu" else device_product_seconds
    before = product(m)
    with Meter(device) as meter:
        model.fit(X, y)
    found = {"ZᵀZ alone": {"seconds": n * (before + product(m)) / 2}}
    some = min(n, 32768)
    with Meter(device) as transform:
        for i in range(0, some, 8192):
            model.features_.transform(X[i : i + 8192])
    found["features alone"] = {"seconds": transform.seconds * n / some}
    found["fit"] = {"seconds": meter.seconds, "peak_gib": meter.peak_mib / 1024}
    found["fit"]["factorizations"] = int(np.isfinite(model.errors_).sum())
    return {"methods": found}


def syrk_seconds(m, n_rows=8192, rounds=3):
    """Return the seconds per row of BLAS for ZᵀZ in float32."""
    from scipy.linalg import blas

    Z = np.random.default_rng(0).standard_normal((n_rows, m), dtype="float32")
    out = np.zeros((m, m), dtype="float32", order="F")
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        blas.ssyrk(1.0, Z.T, beta=1.0, c=out, overwrite_c=True)
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:])) / n_rows


def device_product_seconds(m, n_rows=16384):
    """Return the seconds per row of the float64 product ZᵀZ on a GPU."""
    import torch

    Z = torch.randn(n_rows, m, device="cuda", dtype=torch.float64)
    out = Z.T @ Z
    with Meter("cuda") as meter:
        for _ in range(12):
            out.addmm_(Z.T, Z)
    return meter.seconds / (12 * n_rows)


def memory(n, m):
    return apart(memory_of, n, m)


def memory_of(n, m):
    from ntkit import FeatureRidge, NTKFeatures

    class Stream:
        def __iter__(self):
            for start in range(0, n, 10_000):
                yield synthetic(10_000, seed=start)

    model = FeatureRidge(NTKFeatures(depth=1, n_components=m, random_state=0), random_state=0)
    model.fit(*synthetic(m + 100))
    with Meter() as meter:
        model.fit(Stream())
    return {"peak_mib": meter.peak_mib, "seconds": meter.seconds}


def precision(n, m):
    """Measure the error of centred float32 sums relative to float64; feature means are 100 standard deviations."""
    from ntkit.models._statistics import Statistics

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
    return {
        "gram_error": float(np.abs(G - H).max() / np.abs(H).max()),
        "cross_error": float(np.abs(part.cross - exact.cross).max() / np.abs(exact.cross).max()),
        "mean_error": float(np.abs(part.z_mean - exact.z_mean).max() / 100),
    }


# Accuracy.


PROTEIN = {
    f"{name} L=1{comma}": ("NTKFeatures", {"depth": 1, "method": method} | bias)
    for comma, bias in (("", {}), (", bias", {"bias": "auto"}))
    for name, method in (
        ("NTKRandomFeatures", "random"),
        ("NTKSketch", "sketch"),
        ("NTKPolynomialSketch", "polynomial"),
    )
} | {
    "NTKPolynomialSketch L=3, bias": ("NTKFeatures", {"depth": 3, "bias": "auto"}),
    "RandomFourierFeatures, scale": ("RandomFourierFeatures", {"lengthscale": "scale"}),
    "RandomFourierFeatures, 0.3 scale": ("RandomFourierFeatures", {"lengthscale": 0.3 * (9 / 2) ** 0.5}),
}


def protein_cases(args):
    maps, m = ([*PROTEIN][2::6], 64) if args.quick else (PROTEIN, 8192)
    return grid(features=maps, m=m, folds=4, device=args.device)


def protein(features, m, folds, device):
    """Measure four folds, as in Table 2 of Zandieh et al.; α by leave-one-out error on the training folds."""
    from sklearn.model_selection import KFold
    from sklearn.preprocessing import StandardScaler

    import ntkit

    data = dataset("protein")
    X, y = data.X, data.y
    kind, options = PROTEIN[features]
    feature_map = getattr(ntkit, kind)(n_components=m, **options)
    errors, seconds = [], []
    for fold, (train, test) in enumerate(KFold(folds, shuffle=True, random_state=0).split(X)):
        feature_map.set_params(random_state=fold)
        scaler = StandardScaler().fit(X[train])
        rows, others = on_device(device, scaler.transform(X[train]), scaler.transform(X[test]))
        start = time.perf_counter()
        model = ntkit.FeatureRidge(feature_map, random_state=0).fit(rows, y[train])
        errors.append(float(np.mean((to_numpy(model.predict(others)) - y[test]) ** 2)))
        seconds.append(time.perf_counter() - start)
    return {"mse": errors, "seconds": seconds}


def blurred(images, sigma):
    """Smooth images by a Gaussian of `sigma` pixels and return them as rows of norm 1."""
    from scipy.ndimage import gaussian_filter1d

    X = images.reshape(len(images), 28, 28).astype("float32") / 255
    if sigma:
        X = gaussian_filter1d(gaussian_filter1d(X, sigma, axis=1, mode="constant"), sigma, axis=2, mode="constant")
    X = X.reshape(len(images), -1)
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def mnist_cases(args):
    if args.quick:
        return grid(family="RandomFourierFeatures", blur=False, choice=64, sizes=[[64]], device=args.device)
    axes = {"family": ("NTKFeatures", "RandomFourierFeatures"), "blur": (False, True)}
    return grid(**axes, choice=2048, sizes=[[4096, 8192, 16384]], device=args.device)


def mnist(family, blur, choice, sizes, device):
    """Choose depth or length scale, and blur, on 10 000 held-out training rows with few features; then fit all rows."""
    from ntkit import FeatureRidgeClassifier, NTKFeatures, RandomFourierFeatures

    data = dataset("mnist")
    maps = (
        [NTKFeatures(depth=depth) for depth in (1, 2, 3)]
        if family == "NTKFeatures"
        else [RandomFourierFeatures(lengthscale=scale) for scale in (0.35, 0.5, 0.7)]
    )
    held = {}
    for sigma in (0.7, 1.0) if blur else (0.0,):
        (X,) = on_device(device, blurred(data.X, sigma))
        for number, features in enumerate(maps):
            features.set_params(n_components=choice, random_state=0)
            model = FeatureRidgeClassifier(features, random_state=0).fit(X[:50000], data.y[:50000])
            held[sigma, number] = float(np.mean(to_numpy(model.predict(X[50000:])) != data.y[50000:]))
    sigma, number = min(held, key=held.__getitem__)
    features = maps[number]
    X, X_test = on_device(device, blurred(data.X, sigma), blurred(data.X_test, sigma))
    found = {}
    for m in sizes:
        features.set_params(n_components=m)
        with Meter(device) as meter:
            model = FeatureRidgeClassifier(features, random_state=0).fit(X, data.y)
        accuracy = float(np.mean(to_numpy(model.predict(X_test)) == data.y_test))
        found[f"m = {m}"] = {"accuracy": accuracy, "fit_seconds": meter.seconds, "alpha": model.alpha_}
        found[f"m = {m}"]["features"] = str(features)
    return {"sigma": sigma, "methods": found}


def rivals(m, sigma, lengthscale):
    """Measure time and accuracy on all of MNIST, and of scikit-learn's RBFSampler + RidgeClassifier, on the CPU."""
    from sklearn.kernel_approximation import RBFSampler
    from sklearn.linear_model import RidgeClassifier
    from sklearn.pipeline import make_pipeline

    from ntkit import FeatureRidgeClassifier, NTKFeatures, RandomFourierFeatures

    data = dataset("mnist")
    X, X_test = blurred(data.X, sigma), blurred(data.X_test, sigma)
    sampler = RBFSampler(gamma=1 / (2 * lengthscale**2), n_components=m, random_state=0)
    maps = {
        "NTKFeatures": NTKFeatures(depth=3, n_components=m, random_state=0),
        "RandomFourierFeatures": RandomFourierFeatures(n_components=m, lengthscale=lengthscale, random_state=0),
    }
    models = {"RBFSampler + RidgeClassifier, one α": make_pipeline(sampler, RidgeClassifier(alpha=0.1))}
    for name, features in maps.items():
        models[f"{name} + FeatureRidgeClassifier, α chosen"] = FeatureRidgeClassifier(features, random_state=0)
    found = {}
    for name, model in models.items():
        model.fit(X[:6000], data.y[:6000])
        with Meter() as fit:
            model.fit(X, data.y)
        with Meter() as predict:
            accuracy = float(np.mean(model.predict(X_test) == data.y_test))
        found[name] = {"fit_seconds": fit.seconds, "peak_mib": fit.peak_mib, "accuracy": accuracy}
        found[name]["predict_seconds"] = predict.seconds
    return {"methods": found}


def search_models(regression, m, budget, seed):
    """Return the search, and single default maps with their α path."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    import ntkit

    ridge = ntkit.FeatureRidge if regression else ntkit.FeatureRidgeClassifier
    searcher = ntkit.FeatureRidgeSearch if regression else ntkit.FeatureRidgeSearchClassifier
    shared = {"n_components": m, "random_state": seed}
    biased = ntkit.NTKFeatures(depth=1, bias="auto", **shared)
    maps = {
        "NTK L=1": ntkit.NTKFeatures(depth=1, **shared),
        "NTK L=1, bias": biased,
        "NTK L=3, bias": ntkit.NTKFeatures(depth=3, bias="auto", **shared),
        "Gaussian, scale": ntkit.RandomFourierFeatures(**shared),
        "linear": "passthrough",
    }
    steps = {name: make_pipeline(StandardScaler(), features) for name, features in maps.items()}
    steps["FeatureRidge()"] = make_pipeline(ntkit.ArcsinhScaler(), biased)
    models = {name: ridge(features, random_state=seed) for name, features in steps.items()}
    return models | {"search": searcher(n_components=m, time_budget=budget, random_state=seed)}


def search_cases(args):
    """Return the cases; split 10 was not used to tune the search."""
    if args.quick:
        return grid(table="abalone", seed=0, m=128, budget=3.0)
    return grid(table=TABLES, seed=(0, 1, 2, 10), m=2048, budget=60.0)


def search(table, seed, m, budget):
    """Measure test errors on a fifth of the rows."""
    data = dataset(table)
    X, y = data.X, data.y
    if data.X_test is not None:
        X, y = np.concatenate([X, data.X_test]), np.concatenate([y, data.y_test])
    regression = data.task == "regression"
    order = np.random.default_rng(seed).permutation(len(X))
    test, train = order[: len(X) // 5], order[len(X) // 5 :]
    models, found = search_models(regression, m, budget, seed), {}
    for name, model in models.items():
        start = time.perf_counter()
        model.fit(X[train], y[train])
        seconds = time.perf_counter() - start
        prediction = model.predict(X[test])
        error = np.mean((prediction - y[test]) ** 2) if regression else np.mean(prediction != y[test])
        found[name] = {"error": float(error), "seconds": seconds}
    return {"chosen": models["search"].best_name_, "fits": len(models["search"].results_), "methods": found}


# Clusters.


def dask(n, m, chunk, rounds):
    """Time the same fit on one and on two worker processes in turns, with one thread each."""
    from dask import array
    from distributed import Client, LocalCluster

    from ntkit import FeatureRidge, NTKFeatures

    X, y = synthetic(n)
    found = {"1 worker": {"seconds": []}, "2 workers": {"seconds": []}}
    for workers, name in [*enumerate(found, 1)] * rounds:
        cluster = LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None)
        with cluster, Client(cluster) as client:
            rows, targets = (client.persist(array.from_array(a, chunks=(chunk, *a.shape[1:]))) for a in (X, y))
            model = FeatureRidge(NTKFeatures(depth=1, n_components=m, random_state=0), alphas=1.0, random_state=0)
            model.fit(rows[: 4 * chunk], targets[: 4 * chunk])  # loads compiled code
            start = time.perf_counter()
            model.fit(rows, targets)
            found[name]["seconds"].append(time.perf_counter() - start)
    return {"methods": found}


def blocks(m, rows):
    """Measure one block: seconds of features, sums and merging two results; bytes of its statistics."""
    from ntkit import NTKFeatures
    from ntkit.models._statistics import Statistics

    X, y = synthetic(rows)
    features = NTKFeatures(depth=1, n_components=m, random_state=0).fit(X)
    features.transform(X[:1000])
    with Meter() as mapping:
        for i in range(0, rows, 2048):
            features.transform(X[i : i + 2048])
    parts = []
    with Meter() as both:
        for seed in range(2):
            part = Statistics(m, 1, 1000)
            for i in range(0, rows, 2048):
                Z = features.transform(X[i : i + 2048])
                keys = np.random.default_rng(seed).random(2048)
                part.add(Z, y[i : i + 2048, None].astype("float64"), np.ones(2048), keys)
            parts.append(part.finish())
    start = time.perf_counter()
    parts[0].merge(parts[1])
    found = {"map_seconds": mapping.seconds, "map_and_sum_seconds": both.seconds / 2, "peak_mib": both.peak_mib}
    found["merge_seconds"] = time.perf_counter() - start
    return found | {"statistics_bytes": len(pickle.dumps(parts[1], protocol=5))}


def block_cases(args):
    """Return the cases; each block has more rows than m, as smaller blocks are stored as rows."""
    points = [(128, 4096)] if args.quick else [(4096, 16384), (16384, 20480)]
    return [{"m": m, "rows": rows} for m, rows in points]


QUESTIONS = {
    "fit": Question(
        "A fit compared with ZᵀZ alone", fit_cases, fit,
        "features m alphas n device method seconds:.2f seconds/:.2f peak_gib:.2f factorizations", DEVICES,
    ),
    "memory": Question(
        "Peak memory of streams",
        lambda args: grid(n=30_000, m=128) if args.quick else grid(n=(100_000, 1_000_000), m=2048),
        memory, "n m peak_mib:.0f seconds:.1f",
    ),
    "precision": Question(
        "Errors of float32 sums", lambda args: grid(n=10**5 if args.quick else (10**5, 10**6, 10**7), m=32),
        precision, "n m gram_error:.1e cross_error:.1e mean_error:.1e",
    ),
    "protein": Question(
        "Protein: mean squared errors of four folds", protein_cases, protein,
        "features m device mse:.2f seconds:.1f", DEVICES,
    ),
    "mnist": Question(
        "MNIST, all rows", mnist_cases, mnist,
        "family sigma device method accuracy:.4f fit_seconds:.1f features", DEVICES,
    ),
    "rivals": Question(
        "MNIST compared with scikit-learn, on this CPU",
        lambda args: grid(m=64 if args.quick else 4096, sigma=0.7, lengthscale=0.5), rivals,
        "method m fit_seconds:.1f fit_seconds/:.2f predict_seconds:.1f peak_mib:.0f accuracy:.4f",
    ),
    "search": Question(
        "The search over kernels against single defaults", search_cases, search,
        "table seed method error:.4g seconds:.1f chosen",
    ),
    "dask": Question(
        "Two workers against one",
        lambda args: (
            grid(n=10_000, m=64, chunk=1000, rounds=1)
            if args.quick
            else grid(n=200_000, m=2048, chunk=10_000, rounds=2)
        ),
        dask, "n m method seconds:.1f seconds/:.2f",
    ),
    "blocks": Question(
        "Cost of a block of rows", block_cases, blocks,
        "m rows map_seconds:.2f map_and_sum_seconds:.2f merge_seconds:.3f statistics_bytes peak_mib:.0f",
    ),
}  # fmt: skip
cases, measure, report = ask(QUESTIONS)


if __name__ == "__main__":
    main(__name__)
