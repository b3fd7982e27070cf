"""Sketched gradients of trained networks: kernel error, time, and attribution of predictions to training rows.

    python benchmarks/bench_empirical.py                        measure the missing cases and print the tables
    python benchmarks/bench_empirical.py kernel --device cuda   larger networks on a GPU
    python benchmarks/bench_empirical.py packages               needs `pip install traker dattri`

Errors are ‖Z Zᵀ − K‖_F / ‖K‖_F with the exact kernel K of all gradients. All methods have equal storage. "LoGra" is the
product of two Gaussian projections of Choe et al. (2024), "dense" the Gaussian projection of the whole gradient as in
TRAK, "CountSketch" a sparse projection of the whole gradient, "factors only" a TensorSRHT for every matrix. All are
implemented here from their papers; "packages" runs the code of others.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np

from experiment import Question, UnavailableError, added_mib, ask, dataset, main, medians

TITLE = "Sketched gradients of torch modules"


def cnn(device, seed, *, channels, n_train, epochs):
    """Return a convolutional network trained on CIFAR-10, its test images and labels."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    data = dataset("cifar10")
    X, Y = (_images(rows, device) for rows in (data.X[:n_train], data.X_test[:2000]))
    y, t = (
        torch.as_tensor(np.asarray(v).astype(np.int64), device=device) for v in (data.y[:n_train], data.y_test[:2000])
    )

    def block(a, b):
        return [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.GroupNorm(8, b), nn.ReLU(inplace=True)]

    c = channels
    net = nn.Sequential(
        *block(3, c), *block(c, 2 * c), nn.MaxPool2d(2), *block(2 * c, 2 * c), *block(2 * c, 2 * c), nn.MaxPool2d(2),
        *block(2 * c, 4 * c), nn.MaxPool2d(2), *block(4 * c, 4 * c), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4 * c, 4 * c), nn.ReLU(), nn.Linear(4 * c, 10),
    ).to(device)  # fmt: skip
    train(net, X, y, epochs=epochs, batch=100, rate=2e-3)
    return net.eval(), Y, t, "margin"


def _images(rows, device):
    import torch

    rows = np.asarray(rows, dtype=np.float32).reshape(len(rows), 32, 32, 3).transpose(0, 3, 1, 2)
    scale = 64.0 if rows.max() > 2 else 0.25
    return torch.from_numpy(np.ascontiguousarray(rows / scale - 2)).to(device)


def transformer(device, seed, *, width, depth, length, steps):
    """Return a language model trained briefly on a Markov chain with several styles, and new sequences."""
    import torch
    from torch import nn
    from torch.nn import functional

    torch.manual_seed(seed)
    vocabulary, styles = 2 * width, 16
    table = torch.randint(0, vocabulary, (styles, vocabulary, 4))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Parameter(0.02 * torch.randn(length, width))
            layer = nn.TransformerEncoderLayer(
                width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            self.blocks = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
            self.head = nn.Linear(width, vocabulary, bias=False)

        def forward(self, x):
            mask = torch.full((x.shape[1], x.shape[1]), -torch.inf, device=x.device).triu(1)
            return self.head(self.blocks(self.tokens(x) + self.places, mask=mask, is_causal=True))

    def sequences(n):
        style, x = torch.randint(0, styles, (n,)), [torch.randint(0, vocabulary, (n,))]
        for _ in range(length):
            x.append(table[style, x[-1], torch.randint(0, 4, (n,))])
        x = torch.stack(x, 1).to(device)
        return x[:, :-1], x[:, 1:]

    net = Model().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    for _ in range(steps):
        x, y = sequences(32)
        loss = functional.cross_entropy(net(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.zero_grad()
    return net.eval(), *sequences(512), "loss"


def train(net, X, y, *, epochs, batch=64, rate=3e-3, seed=0):
    """Train a classifier and clear its gradients."""
    import torch
    from torch.nn import functional

    order = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(net.parameters(), rate, weight_decay=1e-3)
    net.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(X), generator=order).split(batch):
            loss = functional.cross_entropy(net(X[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    net.zero_grad()
    return net.eval()


NETWORKS = {
    "cnn small": lambda device, seed: cnn(device, seed, channels=16, n_train=4000, epochs=6),
    "cnn": lambda device, seed: cnn(device, seed, channels=64, n_train=10_000, epochs=12),
    "transformer small": lambda device, seed: transformer(device, seed, width=64, depth=3, length=48, steps=300),
    "transformer": lambda device, seed: transformer(device, seed, width=512, depth=6, length=128, steps=400),
    "cnn small, untrained": lambda device, seed: cnn(device, seed, channels=16, n_train=200, epochs=1),
    "transformer wide": lambda device, seed: transformer(device, seed, width=256, depth=2, length=64, steps=1),
    "transformer 100 M": lambda device, seed: transformer(device, seed, width=768, depth=12, length=256, steps=1),
    "quick": lambda device, seed: transformer(device, seed, width=16, depth=1, length=8, steps=3),
    "quick images": lambda _, seed: (digit_net(seed).eval(), *digits(seed)[:2], "margin"),
}


@lru_cache(maxsize=1)
def trained(name, device, seed):
    return NETWORKS[name](device, seed)


def with_laws(features, *, matrices, shares="own"):
    """Copy a fitted map and sketch all matrices by one law; shares="equal" gives all parameters equal shares."""
    from copy import copy

    from ntkit.features.empirical.plan import shares as share_out

    plan, start = [], 0
    counts = [each.n_components for each in features._plan]
    if shares == "equal":
        counts = share_out(np.ones(len(counts)), [p.parameter.size for p in features._plan], sum(counts))
    for each, m in zip(features._plan, counts, strict=True):
        law = "identity" if m >= each.parameter.size else matrices if each.parameter.is_matrix else "count"
        plan.append(replace(each, law=law, n_components=m, start=start))
        start += m
    other = copy(features)
    other._plan = tuple(plan)
    other.__dict__.pop("_cached_sketch", None)
    return other


def logra(features, X, y, seed):
    """Return features by two small Gaussian projections of each matrix; vectors are sketched as in the map."""
    import torch

    from ntkit.features.empirical.draws import ModuleSketch

    engine, sketch = features._engine(None), ModuleSketch(features._plan, features._seed)
    generator = torch.Generator().manual_seed(seed)
    projections = {}
    for each in features._plan:
        q, p = each.parameter.shape
        if each.parameter.is_matrix and each.law != "identity":
            k = int(each.n_components**0.5)
            kp = min(max(k, 1), p)
            kq = min(max(each.n_components // kp, 1), q)
            pair = [torch.randn(a, b, generator=generator) / b**0.5 for a, b in ((q, kq), (p, kp))]
            projections[each.parameter.name] = [r.to(engine.device) for r in pair]

    def add(use, out):
        if use.name not in projections:
            return sketch.add(use, out)
        left, right, offset = use.factors(slice(None))
        to_left, to_right = projections[use.name]
        if not left.is_floating_point():
            left = to_left[left][:, None]
        else:
            groups, size = left.shape[1], left.shape[3]
            left = left.float() @ to_left[offset : offset + groups * size].view(groups, size, -1)
        columns = sketch.layers[use.name].planned.columns
        product = (left.transpose(2, 3) @ (right.float() @ to_right)).sum(1).flatten(1)
        out[:, columns.start : columns.start + product.shape[1]] += product
        return None

    parts = []
    for batch in features._rows(X, y, engine).batches(64):
        Z = torch.zeros(batch.n_rows, sketch.n_components, device=engine.device)
        parameters = [each.parameter for each in features._plan]
        with torch.no_grad():
            engine.run(parameters, batch, lambda use, _, Z=Z: add(use, Z))
        parts.append(Z)
    return torch.cat(parts)


def dense(features, X, y, m, seed):
    """Return the Gaussian projection of the gradient of all weights, drawn in blocks."""
    import torch

    engine = features._engine(None)
    generator = torch.Generator(device=engine.device).manual_seed(seed)
    batch = features._rows(X, y, engine).take(slice(None))
    Z = 0.0
    for _, _, G in engine.gradients([each.parameter for each in features._plan], batch):
        for part in G.split(2**14, dim=1):
            Z = Z + part @ torch.randn(part.shape[1], m, device=engine.device, generator=generator) / m**0.5
    return Z


def plain_pass(net, X, y, output):
    """Run a forward and backward pass of all rows, with the gradients of weights."""
    import torch

    from ntkit.features.empirical.outputs import evaluate

    for rows in torch.arange(len(X)).split(64):
        evaluate(output, net, X[rows], y[rows], len(rows), "net").sum().backward()
    for p in net.parameters():
        p.grad = None


def measure_kernel(network, rows, n_components, device, seeds):
    """Measure the kernel error of each method over seeds."""
    from ntkit import EmpiricalNTKFeatures

    net, X, y, output = trained(network, device, 0)
    X, y = X[:rows], y[:rows]
    maps = [
        EmpiricalNTKFeatures(net, n_components=n_components, output=output, batch_size=64, random_state=seed).fit(X, y)
        for seed in range(seeds)
    ]
    K = maps[0].exact_kernel(X, y).cpu().numpy()
    others = {
        "CountSketch": {"matrices": "count"},
        "factors only": {"matrices": "tensor"},
        "equal shares": {"matrices": "count", "shares": "equal"},
    }
    variants = {"ntkit": maps} | {name: [with_laws(f, **o) for f in maps] for name, o in others.items()}
    methods = {"dense": lambda k: dense(maps[k], X, y, n_components, k)}
    methods |= {name: lambda k, each=each: each[k].transform(X, y) for name, each in variants.items()}
    methods["LoGra"] = lambda k: logra(maps[k], X, y, k)
    found = {}
    for name, method in methods.items():
        errors = []
        for seed in range(seeds):
            Z = method(seed).double().cpu().numpy()
            errors.append(float(np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K)))
        found[name] = {"error": errors}
    laws = [each["law"] for each in maps[0].layers_]
    trace = np.trace(K)
    return {
        "methods": found,
        "n_weights": sum(p.numel() for p in net.parameters()),
        "laws": {law: laws.count(law) for law in sorted(set(laws))},
        "limit": float(((trace**2 / (K**2).sum() + 1) / n_components) ** 0.5),
    }


def measure_time(network, rows, n_components, device):
    """Measure the time of each method and of a plain forward and backward pass; the networks are barely trained."""
    from ntkit import EmpiricalNTKFeatures

    net, X, y, output = trained(network, device, 0)
    X, y = X[:rows], y[:rows]
    features = EmpiricalNTKFeatures(net, n_components=n_components, output=output, batch_size=64, random_state=0)
    features.fit(X, y)
    others = {
        name: with_laws(features, matrices=law) for name, law in (("CountSketch", "count"), ("factors only", "tensor"))
    }
    methods = {"plain pass": lambda: plain_pass(net, X, y, output), "ntkit": lambda: features.transform(X, y)}
    methods |= {name: lambda each=each: each.transform(X, y) for name, each in others.items()}
    methods["LoGra"] = lambda: logra(features, X, y, 0)
    times = medians(methods, 3, device)
    return {"methods": {name: {"seconds": value} for name, value in times.items()}}


def traker_features(net, X, y, m, batch, seed):
    """Return the projected gradients of margins of the package traker; m=None gives the gradients as they are."""
    import torch
    from trak import TRAKer
    from trak.projectors import NoOpProjector

    projector = NoOpProjector(device="cpu") if m is None else None
    with tempfile.TemporaryDirectory() as folder:
        traker = TRAKer(
            net, "image_classification", len(X), save_dir=folder, device="cpu", projector=projector, proj_dim=m,
            use_half_precision=False, projector_seed=seed, logging_level=logging.WARNING,
        )  # fmt: skip
        traker.load_checkpoint(net.state_dict(), model_id=0)
        for rows in torch.arange(len(X)).split(batch):
            traker.featurize((X[rows], y[rows]), num_samples=len(rows))
        Z = torch.from_numpy(np.array(traker.saver.current_store["grads"]))
    return Z * traker.normalize_factor / (m or 1) ** 0.5  # traker divides by the root of the number of weights instead


def dattri_features(net, X, y, m, batch, seed):
    """Return the projected gradients of margins of the package dattri, by the steps of its TRAKAttributor."""
    import torch
    from dattri.func.projection import random_project
    from dattri.task import AttributionTask

    from ntkit.features.empirical.outputs import evaluate

    def margin(weights, data):
        image, label = (values[None] for values in data)
        return evaluate("margin", lambda x: torch.func.functional_call(net, weights, (x,)), image, label, 1, "net")[0]

    task = AttributionTask(loss_func=margin, model=net, checkpoints=net.state_dict())
    gradients, (weights, _) = task.get_grad_loss_func(in_dims=(None, 0)), task.get_param(ckpt_idx=0)
    parts = []
    for rows in torch.arange(len(X)).split(batch):
        G = gradients(weights, (X[rows], y[rows])).detach()
        if m is not None:
            project = random_project(G, len(G), proj_dim=m, proj_max_batch_size=32, proj_seed=seed, device="cpu")
            G = project(G, ensemble_id=0)
        parts.append(G)
    return torch.cat(parts)


PACKAGES = {"traker": traker_features, "dattri": dattri_features}


def installed(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def measure_packages(network, rows, n_components, batch, packages, seeds):
    """Measure kernel error, seconds for all rows and memory of ntkit and of packages that project whole gradients.

    ntkit is fitted on other rows than the measured ones; `fit_seconds` is the time of this. `same_kernel` is the
    relative difference of the exact kernels of a package's gradients and of ntkit.
    """
    from ntkit import EmpiricalNTKFeatures

    if absent := [package for package in packages if not installed(package)]:
        raise UnavailableError(f"not installed: {', '.join(absent)}")
    net, X, y, output = trained(network, "cpu", 0)
    new = (X[rows : 2 * rows], y[rows : 2 * rows])
    X, y = X[:rows], y[:rows]

    def fitted(seed):
        return EmpiricalNTKFeatures(
            net, n_components=n_components, output=output, batch_size=batch, random_state=seed
        ).fit(*new)

    maps = [fitted(seed) for seed in range(seeds)]
    K = maps[0].exact_kernel(X, y).double().numpy()

    def error(Z):
        Z = Z.double().numpy()
        return float(np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K))

    methods = {"ntkit": lambda seed=0: maps[seed].transform(X, y)}
    methods |= {name: lambda seed=0, f=PACKAGES[name]: f(net, X, y, n_components, batch, seed) for name in packages}
    times = medians({"fit": lambda: fitted(0), **methods}, 5)
    found = {
        name: {
            "error": [error(method(seed)) for seed in range(seeds)],
            "seconds": times[name],
            "peak_mib": added_mib((lambda: fitted(0).transform(X, y)) if name == "ntkit" else method),
        }
        for name, method in methods.items()
    }
    found["ntkit"]["fit_seconds"] = times["fit"]
    for name in packages:
        found[name] |= {"same_kernel": error(PACKAGES[name](net, X, y, None, batch, 0)), "version": installed(name)}
    return {"methods": found}


def digits(seed, n_train=1000):
    """Return training and test images of digits and their labels."""
    import torch
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(X))
    X, y = torch.from_numpy((X[order] / 8 - 1).astype(np.float32).reshape(-1, 1, 8, 8)), torch.from_numpy(y[order])
    return X[:n_train], y[:n_train], X[n_train:], y[n_train:]


def digit_net(seed):
    import torch
    from torch import nn

    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def projected(net, X, y, method, n_components, seed, fit_on):
    """Return the features of margins by a method, for each set of rows in X."""
    from ntkit import EmpiricalNTKFeatures

    features = EmpiricalNTKFeatures(net, n_components=n_components, random_state=seed).fit(*fit_on)
    if method == "ntkit":
        return [features.transform(a, b).numpy() for a, b in zip(X, y, strict=True)]
    if method == "TRAK (dense)":
        return [dense(features, a, b, n_components, seed).numpy() for a, b in zip(X, y, strict=True)]
    if method == "LoGra":
        return [logra(features, a, b, seed).numpy() for a, b in zip(X, y, strict=True)]
    last = EmpiricalNTKFeatures(net, n_components=n_components, layers="7", random_state=seed).fit(*fit_on)
    return [last.transform(a, b).numpy() for a, b in zip(X, y, strict=True)]


def measure_flips(n_components, seed, epochs):
    """Measure the share of flipped labels found in the tenth of rows with the largest self-influence."""
    from ntkit.attribution import TrainingInfluence, residuals

    X, y, _, _ = digits(seed)
    rng = np.random.default_rng(seed)
    flipped = rng.choice(len(y), len(y) // 20, replace=False)
    y = y.clone()
    y[flipped] = (y[flipped] + 1 + __import__("torch").from_numpy(rng.integers(9, size=len(flipped)))) % 10
    net = train(digit_net(seed), X, y, epochs=epochs, seed=seed)
    r = residuals(net, X, y)
    found = {}
    for method in ("TRAK (dense)", "ntkit", "LoGra", "last layer"):
        (Z,) = projected(net, [X], [y], method, n_components, seed, (X, y))
        found[method] = {"found": _share(TrainingInfluence().fit(Z, r).self_influence(), flipped)}
    found["1 - p"] = {"found": _share(r, flipped)}
    return {"methods": found}


def _share(scores, flipped):
    top = np.argsort(-scores)[: len(scores) // 10]
    return float(np.isin(flipped, top).mean())


@lru_cache(maxsize=1)
def datamodels(seed, epochs, n_subsets, n_models):
    """Return data, halves of the training rows, margins of networks trained on them, and networks of all rows."""
    import torch

    from ntkit.features.empirical.outputs import evaluate

    X, y, X_test, y_test = digits(seed)
    X_test, y_test = X_test[:200], y_test[:200]
    rng = np.random.default_rng(seed)
    halves = np.stack(
        [np.isin(np.arange(len(X)), rng.choice(len(X), len(X) // 2, replace=False)) for _ in range(n_subsets)]
    )
    true = []
    for index, half in enumerate(halves):
        net = train(digit_net(1000 + index), X[half], y[half], epochs=epochs, seed=index)
        with torch.no_grad():
            true.append(evaluate("margin", net, X_test, y_test, len(X_test), "net").numpy())
    nets = [train(digit_net(index), X, y, epochs=epochs, seed=index) for index in range(n_models)]
    return X, y, X_test, y_test, halves, np.array(true), nets


def measure_lds(n_components, seed, epochs, n_subsets, n_models):
    """Measure the linear datamodelling score: rank correlation of predicted and true margins over halves."""
    from scipy.stats import spearmanr

    from ntkit.attribution import TrainingInfluence, residuals

    X, y, X_test, y_test, halves, true, nets = datamodels(seed, epochs, n_subsets, n_models)
    r = [residuals(net, X, y) for net in nets]
    found = {}
    for method in ("TRAK (dense)", "ntkit", "LoGra", "last layer"):
        pairs = [projected(net, [X, X_test], [y, y_test], method, n_components, seed, (X, y)) for net in nets]
        influence = TrainingInfluence().fit([a for a, _ in pairs], r)
        predicted = halves @ influence.scores([b for _, b in pairs]).T
        scores = [spearmanr(predicted[:, j], true[:, j])[0] for j in range(len(X_test))]
        found[method] = {"lds": float(np.nanmean(scores))}
    return {"methods": found}


def measure_few_shot(n_per_class, seed, n_components):
    """Measure ridge regression on five new digits with features of a network trained on the other five."""
    from sklearn.frozen import FrozenEstimator

    from ntkit import EmpiricalNTKFeatures, FeatureRidgeClassifier

    X, y, X_test, y_test = digits(seed)
    old = y < 5
    net = train(digit_net(seed), X[old], y[old], epochs=10, seed=seed)
    rows = np.concatenate([np.flatnonzero((y == c).numpy())[:n_per_class] for c in range(5, 10)])
    new = y_test >= 5
    found = {}
    for name, layers in (("last layer", ["7.weight"]), ("ntkit", None)):
        features = EmpiricalNTKFeatures(
            net, n_components=n_components, output="random_logits", layers=layers, random_state=seed
        ).fit(X[rows])
        model = FeatureRidgeClassifier(FrozenEstimator(features), random_state=seed).fit(X[rows], y[rows].numpy())
        found[name] = {"accuracy": float(np.mean(np.asarray(model.predict(X_test[new])) == y_test[new].numpy()))}
    return {"methods": found}


def measure_uncertainty(n_components, seed, epochs):
    """Measure probabilities softmax(f(x)/√(1 + s v(x))) with the posterior variance v of a linearized network.

    v(x) = z(x)·(ZᵀZ + α)⁻¹ z(x) for features z of a random combination of the logits, with α and s chosen by the log
    likelihood of 300 clean held-out images. The corrupted test images are shifted by a pixel and have noise.
    """
    import torch
    from scipy.linalg import cho_factor, cho_solve

    from ntkit import EmpiricalNTKFeatures

    X, y, X_test, y_test = digits(seed)
    net = train(digit_net(seed), X, y, epochs=epochs, seed=seed)
    noise = torch.Generator().manual_seed(seed)
    corrupted = torch.roll(X_test, 1, dims=-1) + 0.3 * torch.randn(X_test.shape, generator=noise)
    held, parts = slice(0, 300), {"clean": (X_test[300:], y_test[300:]), "corrupted": (corrupted[300:], y_test[300:])}

    def logits(rows):
        with torch.no_grad():
            return net(rows).double().numpy()

    found = {"softmax": {}}
    for name, (rows, labels) in parts.items():
        found["softmax"] |= _scores(logits(rows), labels.numpy(), name)
    for method, layers in (("last layer", ["7.weight"]), ("ntkit", None)):
        features = EmpiricalNTKFeatures(
            net, n_components=n_components, output="random_logits", layers=layers, random_state=seed
        ).fit(X)
        Z = np.asarray(features.transform(X), dtype=np.float64)
        best = (-np.inf,)
        for alpha in np.trace(Z.T @ Z) / Z.shape[1] * 10.0 ** np.arange(-6.0, 2.0):
            factor = cho_factor(Z.T @ Z + alpha * np.eye(Z.shape[1]))

            def variance(rows, factor=factor, alpha=alpha, features=features):
                z = np.asarray(features.transform(rows), dtype=np.float64)
                return alpha * np.sum(z * cho_solve(factor, z.T).T, axis=1)

            v, f = variance(X_test[held]), logits(X_test[held])
            for scale in np.append(0.0, 10.0 ** np.arange(-3, 4, 0.5)) / max(v.mean(), 1e-300):
                score = _scores(f / np.sqrt(1 + scale * v)[:, None], y_test[held].numpy(), "held")["held_loglik"]
                best = max(best, (score, scale, variance), key=lambda each: each[0])
        _, scale, variance = best
        found[method] = {}
        for name, (rows, labels) in parts.items():
            shrunk = logits(rows) / np.sqrt(1 + scale * variance(rows))[:, None]
            found[method] |= _scores(shrunk, labels.numpy(), name)
    return {"methods": found}


def _scores(f, labels, name):
    """Mean log likelihood, and the expected calibration error with ten bins of equal size."""
    f = f - f.max(axis=1, keepdims=True)
    p = np.exp(f) / np.exp(f).sum(axis=1, keepdims=True)
    right, confidence = p.argmax(axis=1) == labels, p.max(axis=1)
    bins = np.array_split(np.argsort(confidence), 10)
    error = sum(len(b) * abs(right[b].mean() - confidence[b].mean()) for b in bins) / len(labels)
    likelihood = np.log(np.maximum(p[np.arange(len(labels)), labels], 1e-300)).mean()
    return {f"{name}_loglik": float(likelihood), f"{name}_ece": float(error)}


def kernel_cases(args):
    if args.quick:
        return [{"network": "quick", "rows": 16, "n_components": 64, "device": args.device, "seeds": 1}]
    names, sizes = (("cnn small", "transformer small"), (1024, 4096))
    if args.device == "cuda":
        names, sizes = ("cnn", "transformer"), (4096, 8192, 16384, 32768)
    rows = {"cnn": 600, "cnn small": 200, "transformer": 256, "transformer small": 128}
    return [
        {"network": name, "rows": rows[name], "n_components": m, "device": args.device, "seeds": 3}
        for name in names
        for m in sizes
    ]


def time_cases(args):
    if args.quick:
        return [{"network": "quick", "rows": 16, "n_components": 64, "device": args.device}]
    names = ("transformer wide", "cnn small, untrained") if args.device == "cpu" else ("transformer 100 M", "cnn")
    sizes = (1024, 4096) if args.device == "cpu" else (8192, 32768)
    return [{"network": n, "rows": 64, "n_components": m, "device": args.device} for n in names for m in sizes]


def package_cases(args):
    if args.quick:
        here = [package for package in PACKAGES if installed(package)]
        case = {"network": "quick images", "rows": 16, "n_components": 64, "batch": 16, "packages": here, "seeds": 1}
        return [case]
    return [
        {"network": "cnn small", "rows": 200, "n_components": m, "batch": n, "packages": list(PACKAGES), "seeds": 3}
        for m in (1024, 4096)
        for n in (64, 200)
    ]


def flip_cases(args):
    if args.quick:
        return [{"n_components": 64, "seed": 0, "epochs": 1}]
    return [{"n_components": m, "seed": seed, "epochs": 10} for m in (512, 2048) for seed in range(3)]


def lds_cases(args):
    if args.quick:
        return [{"n_components": 64, "seed": 0, "epochs": 1, "n_subsets": 3, "n_models": 1}]
    return [{"n_components": m, "seed": 0, "epochs": 10, "n_subsets": 60, "n_models": 5} for m in (512, 2048)]


def few_shot_cases(args):
    if args.quick:
        return [{"n_per_class": 2, "seed": 0, "n_components": 64}]
    return [{"n_per_class": n, "seed": seed, "n_components": 4096} for n in (2, 10, 50) for seed in range(3)]


def uncertainty_cases(args):
    if args.quick:
        return [{"n_components": 64, "seed": 0, "epochs": 1}]
    return [{"n_components": 2048, "seed": seed, "epochs": 30} for seed in range(5)]


QUESTIONS = {
    "kernel": Question(
        "Error of the kernel", kernel_cases, measure_kernel, "network n_components method error:.4f error/:.2f",
        ("cpu", "cuda"),
    ),
    "time": Question(
        "Time relative to a plain forward and backward pass", time_cases, measure_time,
        "network n_components method seconds:.3g seconds/:.2f", ("cpu", "cuda"),
    ),
    "packages": Question(
        "Packages that project whole gradients", package_cases, measure_packages,
        "network n_components batch method error:.4f error/:.2f seconds:.3g seconds/:.2f fit_seconds:.3g peak_mib:.0f",
    ),
    "flips": Question(
        "5 % flipped labels: share found in the tenth with the largest self-influence", flip_cases, measure_flips,
        "n_components seed method found:.3f",
    ),
    "lds": Question(
        "Linear datamodelling score, digits", lds_cases, measure_lds, "n_components seed method lds:.3f"
    ),
    "few-shot": Question(
        "Accuracy on new classes, digits", few_shot_cases, measure_few_shot, "n_per_class seed method accuracy:.3f"
    ),
    "uncertainty": Question(
        "Log likelihood and calibration error, digits, clean and corrupted", uncertainty_cases, measure_uncertainty,
        "seed method clean_loglik:.3f clean_ece:.3f corrupted_loglik:.3f corrupted_ece:.3f",
    ),
}  # fmt: skip
cases, measure, report = ask(QUESTIONS)

if __name__ == "__main__":
    main(__name__)
