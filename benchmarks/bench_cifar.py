"""CIFAR-10: features of convolutional networks, accuracy against seconds.

`cntk` and `accuracy` need a GPU (--device cuda). Penalties are chosen on 5000 held-out training images; test images
are used only for the reported accuracies.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from experiment import Meter, Question, ask, dataset, grid, main, pyplot, select, to_numpy

TITLE = "CIFAR-10: accuracy, seconds and errors of convolutional features"
DRAWS = [4, 10, 24, 48, 96, 160, 200]
PAPERS_CODE = {
    4096: (93.6, 67.60),
    8192: (194.7, 70.55),
    16384: (415.0, 72.06),
}  # m: (seconds on the same GPU, %)


def now():
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()


def cntk_cases(args):
    sizes = ((4096, 512),) if args.quick else ((4096, 512), (8192, 512), (16384, 1024))
    return [
        {"images": images, "m": m, "hidden": hidden, "rounds": 3, "device": args.device}
        for images in ("standardized", "whitened")
        for m, hidden in sizes
    ]


def cntk(images, m, hidden, rounds, device):
    """Measure depth 3, 3 × 3 filters: from 60 000 uint8 images in host memory to features, then ridge regression."""
    import torch
    from sklearn.preprocessing import FunctionTransformer

    from ntkit import CNTKSketch, FeatureRidgeClassifier, ImageStandardizer, ZCAWhitening

    data = dataset("cifar10")
    parts = [torch.from_numpy(data.X), torch.from_numpy(data.X_test)]
    first = ImageStandardizer() if images == "standardized" else ZCAWhitening(regularization=1.0, per_image=False)
    features = CNTKSketch(
        depth=3, kernel_size=3, n_components=m, hidden_components=hidden, precision="bfloat16", random_state=0
    )
    first.fit(parts[0][:4000].cuda())
    features.fit(parts[0][:1]).transform(parts[0][:2].cuda())  # compiles the GPU kernels
    seconds = []
    for _ in range(rounds):
        torch.cuda.empty_cache()
        with Meter(device) as meter:
            X, X_test = (part.cuda() for part in parts)
            first.fit(X)
            Z = features.fit_transform(first.transform(X))
            Z_test = features.transform(first.transform(X_test))
        seconds.append(meter.seconds)
        del X, X_test
    model = FeatureRidgeClassifier(FunctionTransformer(), selection="holdout", n_selection=5000, random_state=0)
    start = now()
    model.fit(Z, data.y)
    accuracy = 100 * float(np.mean(to_numpy(model.predict(Z_test)) == data.y_test))
    found = {"all_seconds": seconds, "seconds": sorted(seconds)[rounds // 2], "peak_gib": meter.peak_mib / 1024}
    found |= {"accuracy": accuracy, "ridge_seconds": now() - start, "alpha": model.alpha_}
    return found | {"papers_code_seconds": PAPERS_CODE[m][0], "papers_code_accuracy": PAPERS_CODE[m][1]}


def features_of_two_networks(n_components=16384, hidden=512):
    """Return random features of the sum of two NNGP kernels on whitened images, averaged over flips."""
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


def accuracy_cases(args):
    return grid(draws=[DRAWS[:1] if args.quick else DRAWS], device=args.device)


def accuracy(draws, device):
    """Accumulate the Gram matrix of 50 000 + 10 000 images over draws; at each point choose α and solve."""
    import torch

    from ntkit import GramRidgeClassifier

    class Timed(GramRidgeClassifier):
        solve_seconds_ = 0.0

        def _solve_sums(self, sums, Y, weight):
            start = now()
            super()._solve_sums(sums, Y, weight)
            self.solve_seconds_ = now() - start

    data = dataset("cifar10")
    features = features_of_two_networks()
    warm = torch.from_numpy(data.X[:64]).to(device)
    options = {"hidden_layers": 1, "product_dtype": "bfloat16", "selection": "holdout", "n_selection": 5000}
    GramRidgeClassifier(features, **options).transduce(warm, data.y[:64], warm)
    model = Timed(features, **options, keep_coef=False, warm_start=True, random_state=0)
    points, start, solving = {}, now(), 0.0
    X, X_test = torch.from_numpy(data.X).to(device), torch.from_numpy(data.X_test).to(device)
    for n_draws in draws:
        predictions = model.set_params(n_draws=n_draws).transduce(X, data.y, X_test)
        solving += model.solve_seconds_
        point = {"features": 16384 * n_draws, "gram_seconds": now() - start - solving}
        point |= {"seconds": point["gram_seconds"] + model.solve_seconds_, "alpha": model.alpha_}
        point["accuracy"] = 100 * float(np.mean(to_numpy(predictions) == data.y_test))
        held_back = zip(model.alphas_, model.errors_, strict=True)
        point["held_back"] = {f"{a:.3g}": e for a, e in held_back if np.isfinite(e)}
        point["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        points[f"{n_draws} draws"] = point
        model.alphas = model.alpha_ * 10.0 ** np.arange(-1, 0.75, 0.25)
    return {"methods": points}


def speed_cases(args):
    return grid(side=8 if args.quick else (8, 16, 32, 64), n=64)


def speed(side, n):
    """Measure seconds per image for the sketch and seconds per pair of images for the exact kernel."""
    from ntkit import CNTKSketch
    from ntkit.kernels import cntk as exact

    images = dataset("cifar10").X_test[:n].astype(np.float32) / 64 - 2
    step = max(32 // side, 1)
    X = images[:, ::step, ::step]
    X = np.ascontiguousarray(X if side <= 32 else X.repeat(2, axis=1).repeat(2, axis=2))
    few = X[: 32 if side < 32 else 12 if side == 32 else 4]
    found = {}
    for method in ("sketch", "random"):
        features = CNTKSketch(
            depth=3, kernel_size=3, n_components=4096, hidden_components=512, method=method, random_state=0
        ).fit(X)
        features.transform(X[:2])
        with Meter() as meter:
            features.transform(X)
        found[f"{method}_seconds_per_image"] = meter.seconds / n
    exact(X[:2, :4, :4], depth=3)
    with Meter() as meter:
        exact(few, depth=3)
    per_pair = meter.seconds / (len(few) * (len(few) + 1) / 2)
    ratio = per_pair * 500500 / (1000 * found["sketch_seconds_per_image"])
    return found | {"exact_seconds_per_pair": per_pair, "exact_over_sketch_for_1000_images": ratio}


def networks():
    from ntkit import networks as nn

    flat = nn.Sequential(*(nn.Conv(3), nn.ReLU()) * 3, nn.Flatten(), nn.Dense())
    return {f"cntk({depth})": nn.cntk(depth) for depth in (2, 3, 5)} | {"myrtle(5)": nn.myrtle(5), "flat": flat}


def error_cases(args):
    sizes, n, seeds = (256, 6, 1) if args.quick else ((1024, 4096, 16384), 24, 3)
    nets = "cntk(2)" if args.quick else ("cntk(2)", "cntk(3)", "cntk(5)", "myrtle(5)", "flat")
    return grid(net=nets, kind=("ntk", "nngp"), method=("sketch", "random"), m=sizes, n=n, seeds=seeds)


def errors(net, kind, method, m, n, seeds):
    """Measure ‖ZZᵀ − K‖_F/‖K‖_F on images of 16 × 16 pixels, also for the centred matrices."""
    from ntkit import NetworkFeatures, network_kernel

    X = dataset("cifar10").X_test[:n, ::2, ::2].astype(np.float32) / 64 - 2
    net = networks()[net]
    center = np.eye(n) - 1 / n
    K = network_kernel(net, X.astype(np.float64), kind=kind)
    both = []
    for seed in range(seeds):
        Z = NetworkFeatures(net, n_components=m, method=method, kind=kind, random_state=seed).fit_transform(X)
        E = (Z @ Z.T).astype(np.float64) - K
        pairs = (E, K), (center @ E @ center, center @ K @ center)
        both.append([np.linalg.norm(A) / np.linalg.norm(B) for A, B in pairs])
    error, centred_error = np.mean(both, axis=0).tolist()
    return {"error": error, "centred_error": centred_error}


def plot(runs, folder):
    """Plot accuracy against seconds."""
    if not select(runs, question="cntk") or not select(runs, question="accuracy"):
        return []
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")

    def line(points, labels, style, color, label, offset=(6, -12)):
        axes.plot(*zip(*points, strict=True), style, color=color, label=label)
        for point, text in zip(points, labels, strict=True):
            axes.annotate(text, point, textcoords="offset points", xytext=offset, fontsize=8, color=color)

    sizes = [str(m) for m in PAPERS_CODE]
    line(list(PAPERS_CODE.values()), sizes, "s--", "0.5", "CNTK sketch, code of its authors (to features)")
    for (name, color), offset in zip((("standardized", "C9"), ("whitened", "C0")), ((-30, 4), (8, -4)), strict=True):
        points = [(row["seconds"], row["accuracy"]) for row in select(runs, question="cntk", images=name)]
        line(points, sizes, "o-", color, f"CNTKSketch, {name} images (to features)", offset)
    rows = [point for run in select(runs, question="accuracy") for point in run["methods"].values()]
    labels = [f"{row['features'] / 1e6:.2g} M" for row in rows]
    points = [(row["seconds"], row["accuracy"]) for row in rows]
    line(points, labels, "o-", "C3", "NetworkFeatures, random, many draws (to predictions)")
    points = [(row["gram_seconds"], row["accuracy"]) for row in rows]
    line(points, [""] * len(rows), "o:", "C1", "NetworkFeatures, random, many draws (to the Gram matrix)")
    lines = {70.47: "exact CNTK, over 10⁶ s", 85.8: "exact Myrtle-5, 316 V100-hours", 88.2: "best published kernel"}
    for height, text in lines.items():
        axes.axhline(height, color="0.8", linewidth=0.8, zorder=0)
        axes.text(2.1 if height > 80 else 14, height + 0.1, text, fontsize=8, color="0.4", va="bottom")
    axes.set(xscale="log", xlim=(2, 700), ylim=(66, 90), xlabel="seconds on one H200, from images in host memory")
    axes.set(ylabel="test accuracy, %", title="CIFAR-10, 50 000 training images")
    axes.legend(loc="center right", fontsize=8)
    figure.savefig(Path(folder) / "cifar10.png", dpi=150)
    plt.close(figure)
    return ["cifar10.png"]


QUESTIONS = {
    "cntk": Question(
        "CNTKSketch: seconds to features, memory, accuracy", cntk_cases, cntk,
        "images m hidden seconds:.1f peak_gib:.1f ridge_seconds:.1f accuracy:.2f papers_code_seconds "
        "papers_code_accuracy", ("cuda",),
    ),
    "accuracy": Question(
        "Many draws of random features", accuracy_cases, accuracy,
        "method features gram_seconds:.1f seconds:.1f accuracy:.2f peak_gib:.1f", ("cuda",),
    ),
    "errors": Question(
        "Kernel errors on small images", error_cases, errors,
        "net kind method m error:.4f centred_error:.4f",
    ),
    "speed": Question(
        "Seconds on this CPU by number of pixels", speed_cases, speed,
        "side sketch_seconds_per_image:.2g random_seconds_per_image:.2g exact_seconds_per_pair:.2g "
        "exact_over_sketch_for_1000_images:.2g",
    ),
}  # fmt: skip
cases, measure, report = ask(QUESTIONS)


if __name__ == "__main__":
    main(__name__)
