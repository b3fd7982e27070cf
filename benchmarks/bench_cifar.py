"""CIFAR-10: features of convolutional networks, accuracy against seconds.

    python benchmarks/bench_cifar.py cntk                     CNTKSketch: seconds, memory and accuracy (a GPU)
    python benchmarks/bench_cifar.py accuracy                 many draws of random features (a GPU)
    python benchmarks/bench_cifar.py accuracy --draws 24      one point of that curve
    python benchmarks/bench_cifar.py errors                   errors of the kernels, small images, CPU
    python benchmarks/bench_cifar.py speed                    images per second on this CPU, time against pixels
    python benchmarks/bench_cifar.py plot                     docs/cifar10.png, from the results

The data set is that of ntkit.datasets ($NTKIT_DATA). Penalties are chosen on 5000 training images held back; test
images are for the accuracies reported only. Results go to benchmarks/results/cifar10_h200.json (GPU) and cifar10.json.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import product
from pathlib import Path

import numpy as np

from common import RESULTS, versions

DRAWS = (4, 10, 24, 48, 96, 160, 200)
PAPERS_CODE = {4096: (93.6, 67.60), 8192: (194.7, 70.55), 16384: (415.0, 72.06)}  # seconds on the same GPU, accuracy


def save(name, question, found):
    file = RESULTS / name
    everything = json.loads(file.read_text()) if file.exists() else {}
    everything[question] = found
    file.write_text(json.dumps(everything, indent=1) + "\n")


def now():
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()


def to_numpy(values):
    return values.cpu().numpy() if hasattr(values, "cpu") else values


def cntk(rounds=3):
    """Depth 3, filters of 3 × 3: from uint8 images in host memory to features of all 60 000, then ridge regression."""
    import torch
    from sklearn.preprocessing import FunctionTransformer

    from ntkit import CNTKSketch, FeatureRidgeClassifier, ImageStandardizer, ZCAWhitening
    from ntkit.datasets import load_dataset

    data = load_dataset("cifar10")
    images = [torch.from_numpy(data.X), torch.from_numpy(data.X_test)]
    found = []
    steps = {"standardized": ImageStandardizer(), "whitened": ZCAWhitening(regularization=1.0, per_image=False)}
    for (name, first), (m, hidden) in product(steps.items(), ((4096, 512), (8192, 512), (16384, 1024))):
        features = CNTKSketch(
            depth=3, kernel_size=3, n_components=m, hidden_components=hidden, precision="bfloat16", random_state=0
        )
        first.fit(images[0][:4000].cuda())
        features.fit(images[0][:1]).transform(images[0][:2].cuda())  # kernels are compiled
        seconds = []
        for _ in range(rounds):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            start = now()
            X, X_test = (part.cuda() for part in images)
            first.fit(X)
            Z = features.fit_transform(first.transform(X))
            Z_test = features.transform(first.transform(X_test))
            seconds.append(now() - start)
            peak = torch.cuda.max_memory_allocated() / 2**30
            del X, X_test
        start = now()
        identity = FunctionTransformer()
        model = FeatureRidgeClassifier(identity, selection="holdout", n_selection=5000, random_state=0)
        model.fit(Z, data.y)
        accuracy = 100 * float(np.mean(to_numpy(model.predict(Z_test)) == data.y_test))
        row = {
            "images": name,
            "m": m,
            "hidden": hidden,
            "seconds": sorted(seconds)[rounds // 2],
            "all_seconds": seconds,
        }
        row |= {"peak_gib": peak, "accuracy": accuracy, "ridge_seconds": now() - start, "alpha": model.alpha_}
        row |= {"papers_code_seconds": PAPERS_CODE[m][0], "papers_code_accuracy": PAPERS_CODE[m][1]}
        found.append(row)
        print(row, flush=True)
        save("cifar10_h200.json", "cntk", found)
        del Z, Z_test, model


def features_of_two_networks(n_components=16384, hidden=512):
    """Random features of the sum of two NNGP kernels, averaged over flips, of whitened images."""
    from sklearn.pipeline import make_pipeline

    from ntkit import FlipAveraged, NetworkFeatures, ZCAWhitening
    from ntkit import networks as nn

    block = (nn.Conv(3), nn.ReLU())
    pyramid = nn.Sequential(*(*block, nn.AvgPool(2)) * 3, *block, nn.GlobalAvgPool(), nn.Dense())
    random = NetworkFeatures(
        nn.Residual(nn.myrtle(5), pyramid), n_components=n_components, method="random", kind="nngp", normalize=False,
        hidden_components=hidden, precision="bfloat16",
    )  # fmt: skip
    return make_pipeline(ZCAWhitening(regularization=0.1, per_image=False), FlipAveraged(random))


def accuracy(draws=None):
    """The Gram matrix of 50 000 + 10 000 images over more and more draws; α chosen and all solved at each point."""
    import torch

    from ntkit import GramRidgeClassifier
    from ntkit.datasets import load_dataset

    class Timed(GramRidgeClassifier):
        solve_seconds_ = 0.0

        def _solve_sums(self, sums, Y, weight):
            start = now()
            super()._solve_sums(sums, Y, weight)
            self.solve_seconds_ = now() - start

    data = load_dataset("cifar10")
    features = features_of_two_networks()
    warm = torch.from_numpy(data.X[:64]).cuda()
    options = {"hidden_layers": 1, "product_dtype": "bfloat16", "selection": "holdout", "n_selection": 5000}
    GramRidgeClassifier(features, **options).transduce(warm, data.y[:64], warm)
    model = Timed(features, **options, keep_coef=False, warm_start=True, random_state=0)
    found, start, solving = [], now(), 0.0
    X, X_test = torch.from_numpy(data.X).cuda(), torch.from_numpy(data.X_test).cuda()
    for n_draws in DRAWS if draws is None else (draws,):
        predictions = model.set_params(n_draws=n_draws).transduce(X, data.y, X_test)
        solving += model.solve_seconds_
        row = {"draws": n_draws, "features": 16384 * n_draws, "gram_seconds": now() - start - solving}
        row |= {"seconds": row["gram_seconds"] + model.solve_seconds_, "alpha": model.alpha_}
        row["accuracy"] = 100 * float(np.mean(to_numpy(predictions) == data.y_test))
        row["held_back"] = {f"{a:.3g}": e for a, e in zip(model.alphas_, model.errors_, strict=True) if np.isfinite(e)}
        row["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        found.append(row)
        print(row, flush=True)
        if draws is None:
            save("cifar10_h200.json", "accuracy", found)
        model.alphas = model.alpha_ * 10.0 ** np.arange(-1, 0.75, 0.25)


def speed(n=64):
    """Seconds for an image, sketched, and for a pair of images, exact, at 8 to 64 pixels a side."""
    from ntkit import CNTKSketch
    from ntkit.datasets import load_dataset
    from ntkit.kernels import cntk as exact

    images = load_dataset("cifar10").X_test[:n].astype(np.float32) / 64 - 2
    found = []
    for side in (8, 16, 32, 64):
        step = max(32 // side, 1)
        X = images[:, ::step, ::step]
        X = np.ascontiguousarray(X if side <= 32 else X.repeat(2, axis=1).repeat(2, axis=2))
        few = X[: 32 if side < 32 else 12 if side == 32 else 4]
        row = {"side": side}
        for method in ("sketch", "random"):
            features = CNTKSketch(
                depth=3, kernel_size=3, n_components=4096, hidden_components=512, method=method, random_state=0
            ).fit(X)
            features.transform(X[:2])
            start = time.perf_counter()
            features.transform(X)
            row[f"{method}_seconds_per_image"] = (time.perf_counter() - start) / n
        exact(X[:2, :4, :4], depth=3)
        start = time.perf_counter()
        exact(few, depth=3)
        n_pairs = len(few) * (len(few) + 1) / 2
        row["exact_seconds_per_pair"] = (time.perf_counter() - start) / n_pairs
        row["exact_over_sketch_for_1000_images"] = (
            row["exact_seconds_per_pair"] * 500500 / (1000 * row["sketch_seconds_per_image"])
        )
        found.append(row)
        print(row, flush=True)
    save("cifar10.json", "versions", versions())
    save("cifar10.json", "speed", found)


def errors(n=24, seeds=3):
    """Errors of the kernel on images of 16 × 16 pixels, ‖ZZᵀ − K‖_F/‖K‖_F, and the same of centred matrices."""
    from ntkit import NetworkFeatures, network_kernel
    from ntkit import networks as nn
    from ntkit.datasets import load_dataset

    X = load_dataset("cifar10").X_test[:n, ::2, ::2].astype(np.float32) / 64 - 2
    flat = nn.Sequential(*(nn.Conv(3), nn.ReLU()) * 3, nn.Flatten(), nn.Dense())
    nets = {
        "cntk(2)": nn.cntk(2),
        "cntk(3)": nn.cntk(3),
        "cntk(5)": nn.cntk(5),
        "myrtle(5)": nn.myrtle(5),
        "flat": flat,
    }
    center = np.eye(n) - 1 / n
    found = []
    for name, net in nets.items():
        for kind in ("ntk", "nngp"):
            K = network_kernel(net, X.astype(np.float64), kind=kind)
            for method in ("sketch", "random"):
                for m in (1024, 4096, 16384):
                    both = []
                    for seed in range(seeds):
                        Z = NetworkFeatures(
                            net, n_components=m, method=method, kind=kind, random_state=seed
                        ).fit_transform(X)
                        E = (Z @ Z.T).astype(np.float64) - K
                        pairs = (E, K), (center @ E @ center, center @ K @ center)
                        sizes = [np.linalg.norm(A) / np.linalg.norm(B) for A, B in pairs]
                        both.append(sizes)
                    row = {"net": name, "kind": kind, "method": method, "m": m}
                    row["error"], row["centred_error"] = np.mean(both, axis=0).tolist()
                    found.append(row)
                    print(row, flush=True)
    save("cifar10.json", "versions", versions())
    save("cifar10.json", "errors", found)


def plot():
    """Accuracy against seconds."""
    import matplotlib.pyplot as plt

    results = json.loads((RESULTS / "cifar10_h200.json").read_text())
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")

    def line(points, labels, style, color, label, offset=(6, -12)):
        axes.plot(*zip(*points, strict=True), style, color=color, label=label)
        for point, text in zip(points, labels, strict=True):
            axes.annotate(text, point, textcoords="offset points", xytext=offset, fontsize=8, color=color)

    sizes = [str(m) for m in PAPERS_CODE]
    line(list(PAPERS_CODE.values()), sizes, "s--", "0.5", "CNTK sketch, code of its authors (to features)")
    for (name, color), offset in zip((("standardized", "C9"), ("whitened", "C0")), ((-30, 4), (8, -4)), strict=True):
        points = [(row["seconds"], row["accuracy"]) for row in results["cntk"] if row["images"] == name]
        line(points, sizes, "o-", color, f"CNTKSketch, {name} images (to features)", offset)
    rows = results["accuracy"]
    labels = [f"{row['features'] / 1e6:.2g} M" for row in rows]
    points = [(row["seconds"], row["accuracy"]) for row in rows]
    line(points, labels, "o-", "C3", "NetworkFeatures, random, many draws (to predictions)")
    points = [(row["gram_seconds"], row["accuracy"]) for row in rows]
    line(points, [""] * len(rows), "o:", "C1", "the same (to the Gram matrix)")
    lines = {70.47: "exact CNTK, over 10⁶ s", 85.8: "exact Myrtle-5, 316 V100-hours", 88.2: "best published kernel"}
    for height, text in lines.items():
        axes.axhline(height, color="0.8", linewidth=0.8, zorder=0)
        axes.text(2.1 if height > 80 else 14, height + 0.1, text, fontsize=8, color="0.4", va="bottom")
    axes.set(xscale="log", xlim=(2, 700), ylim=(66, 90), xlabel="seconds on one H200, from images in host memory")
    axes.set(ylabel="test accuracy, %", title="CIFAR-10, 50 000 training images")
    axes.legend(loc="center right", fontsize=8)
    file = Path(__file__).resolve().parents[1] / "docs" / "cifar10.png"
    figure.savefig(file, dpi=150)
    print(file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=("cntk", "accuracy", "errors", "speed", "plot"))
    parser.add_argument("--draws", type=int, help="of one point of the accuracy curve")
    arguments = parser.parse_args()
    if arguments.question in ("cntk", "accuracy") and arguments.draws is None:
        save("cifar10_h200.json", "versions", versions("cuda"))
    if arguments.question == "accuracy":
        accuracy(arguments.draws)
    else:
        {"cntk": cntk, "errors": errors, "speed": speed, "plot": plot}[arguments.question]()
