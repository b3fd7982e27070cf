"""Gegenbauer features: spectral errors against the number of features (Theorem 9), and places with months.

    python benchmarks/bench_zonal.py spectral
    python benchmarks/bench_zonal.py sphere

`spectral` has other maps of the Gaussian beside them. `sphere` is ridge regression on a place of the sphere and a
month: test errors and seconds of GegenbauerFeatures with and without groups="auto" and of NystroemFeatures.

The theorem is that of Han, Zandieh, Avron, "Random Gegenbauer Features for Scalable Kernel Methods", ICML 2022. Its
tables and its figure are in papers/.
"""

from __future__ import annotations

import argparse
import json

import numpy as np

from common import RESULTS, versions
from experiment import Meter, dataset, pyplot
from papers._gegenbauer import SEEDS, make, ridge, table

FILE = RESULTS / "zonal.json"


def spectral(args):
    """Spectral ε of maps of the Gaussian on unit rows, and what Theorem 9 promises for Definition 8."""
    from ntkit.diagnostics import spectral_error, statistical_dimension
    from ntkit.kernels import gaussian
    from ntkit.kernels.zonal import harmonic_dimension, radial_functions

    n, lam = 1000, 1.0
    sizes = [64, 256, 1024] if args.quick else [64, 128, 256, 512, 1024, 2048, 4096, 8192]
    out = {"sizes": sizes, "rows": n, "lam": lam}
    for d in (3, 9, 64):
        X = np.random.default_rng(d).standard_normal((n, d))
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        K = gaussian(X, lengthscale=1.0)
        s = statistical_dimension(K, lam)
        h = radial_functions("gaussian", [1.0], 30, 30, d)[0]
        energies = (h**2).sum(axis=1)
        leverage = sum(
            min(harmonic_dimension(k, d) * np.pi**2 * (k + 1) ** 2 / (6 * lam) * n * e, float(harmonic_dimension(k, d)))
            for k, e in enumerate(energies)
        )
        block = {"statistical_dimension": s, "leverage": leverage}
        block["theorem"] = [float(np.sqrt(8 / 3 * np.log(16 * s / 0.1) * leverage / m)) for m in sizes]
        for label in ("definition 8", "orthogonal 8", "gegenbauer", "fourier", "orthogonal", "taylor"):
            block[label] = []
            for m in sizes:
                errors = []
                for seed in SEEDS:
                    if label == "orthogonal 8":
                        feature_map = make("gegenbauer", "gaussian", m, seed).set_params(harmonics=False)
                    else:
                        feature_map = make(label, "gaussian", m, seed)
                    errors.append(spectral_error(K, feature_map.fit(X).transform(X), lam))
                block[label].append(float(np.mean(errors)))
            print(d, label, [f"{e:.2g}" for e in block[label]], flush=True)
        out[str(d)] = block
    if not args.quick:
        save("spectral", out)
        plot_spectral(out)


def plot_spectral(out):
    plt = pyplot()
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.8), constrained_layout=True, sharey=True)
    styles = {
        "theorem": ("0.6", ":", "Theorem 9, bound for Definition 8"),
        "definition 8": ("C0", "-", "Gegenbauer, Definition 8"),
        "orthogonal 8": ("C0", "--", "the same, orthogonal directions"),
        "gegenbauer": ("C3", "-", "Gegenbauer"),
        "fourier": ("0.3", "-", "Fourier"),
        "orthogonal": ("0.3", "--", "Orthogonal Fourier"),
        "taylor": ("C2", "-", "DotProductSketch"),
    }
    for ax, d in zip(axes, (3, 9, 64), strict=True):
        for label, (color, line, text) in styles.items():
            ax.loglog(out["sizes"], np.maximum(out[str(d)][label], 1e-8), line, color=color, label=text)
        ax.set(title=f"d = {d}, statistical dimension {out[str(d)]['statistical_dimension']:.0f}", xlabel="features")
    axes[0].set(ylabel="spectral ε at λ = 1", ylim=(1e-8, 1e2))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig("docs/zonal_spectral.png", dpi=110)


FIELDS = ("airtemp", "airtemp, circle", "airtemp, 1 to 12", "airtemp, standardized", "ocean", "ocean, circle")
SCALES = (0.1, 0.14, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4)


def field(name, seed, n):
    """Unit vectors of places with columns of the month, and targets.

    `airtemp`: air temperatures of all places. `ocean`: synthetic; depths (km) of the sea, places without land, which
    change with the season as 1 + 0.3 s z, plus 5 s z for s = sin(2π(month − 3)/12). The month is scaled to −¼ … ¼, or
    cosine and sine of a circle of radius ¼, or 1 to 12.
    """
    if name.startswith("airtemp"):
        X, y = table("airtemp", seed, n)
        place, month = X[:, :3], np.rint(22 * X[:, 3] + 5.5)
    else:
        rng = np.random.default_rng(seed)
        data = dataset("elevation")
        chosen = np.flatnonzero(data.y < 0)
        weights = np.sqrt(np.maximum(1 - data.X[chosen, 2].astype(np.float64) ** 2, 0))
        chosen = rng.choice(chosen, n, replace=False, p=weights / weights.sum())
        place, month = data.X[chosen].astype(np.float64), rng.integers(0, 12, n)
        season = np.sin(2 * np.pi * (month - 3) / 12) * place[:, 2]
        y = data.y[chosen] / 1000 * (1 + 0.3 * season) + 5 * season
    if "circle" in name:
        columns = np.stack([np.cos(np.pi * month / 6), np.sin(np.pi * month / 6)], axis=1) / 4
    else:
        columns = (month + 1.0 if "12" in name else (month - 5.5) / 22)[:, None]
    X = np.concatenate([place, columns], axis=1)
    return (X - X.mean(axis=0)) / X.std(axis=0) if "standardized" in name else X, y


def sphere(args):
    """Test errors and seconds of fit and transform, the length scale chosen for Nyström features on other rows."""
    n, m, seeds = (3000, 128, range(1)) if args.quick else (60000, 1024, SEEDS)
    out = {"rows": n, "components": m}
    for name in FIELDS:
        X, y = field(name, 100, n // 5)
        split, errors = len(X) * 5 // 6, {}
        for scale in SCALES:
            lengthscale = scale / 0.577 if "standardized" in name else scale  # deviation of an entry of a unit vector
            Z = make("nystroem", "gaussian", m, 0, lengthscale=lengthscale).fit_transform(X)
            errors[lengthscale] = ridge(Z[:split], y[:split], Z[split:], y[split:])[0]
        lengthscale = min(errors, key=errors.get)
        block = {"lengthscale": lengthscale}
        for seed in seeds:
            X, y = field(name, seed, n)
            split = n * 9 // 10
            for label, groups in (("nystroem", None), ("groups=None", None), ("groups='auto'", "auto")):
                feature_map = make(
                    "nystroem" if label == "nystroem" else "gegenbauer", "gaussian", m, seed, lengthscale=lengthscale
                )
                if label != "nystroem":
                    feature_map.set_params(groups=groups)
                feature_map.fit(X[: 2 * m]).transform(X[: 2 * m])  # compiles
                with Meter() as meter:
                    Z = feature_map.fit(X[:split]).transform(X)
                mse = ridge(Z[:split], y[:split], Z[split:], y[split:])[0]
                found = block.setdefault(label, {"mse": [], "seconds": []})
                found["mse"].append(mse)
                found["seconds"].append(meter.seconds)
            block["groups_"] = feature_map.groups_
        base = block["nystroem"]
        for label in ("nystroem", "groups=None", "groups='auto'"):
            found = block[label]
            ratios = (
                np.mean(found["mse"]) / np.mean(base["mse"]),
                np.median(found["seconds"]) / np.median(base["seconds"]),
            )
            text = f"{np.mean(found['mse']):.4g}, {np.median(found['seconds']):.2g} s"
            print(f"{name:22s} {label:14s} {text:18s} over Nyström {ratios[0]:.3f}, {ratios[1]:.2f}", flush=True)
        out[name] = block
    if not args.quick:
        save("sphere", out)


def save(question, values):
    results = json.loads(FILE.read_text()) if FILE.exists() else {}
    results[question] = {"versions": versions(), **values}
    FILE.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", nargs="?", choices=("spectral", "sphere"), default="spectral")
    parser.add_argument("--quick", action="store_true", help="few sizes, nothing saved")
    args = parser.parse_args()
    {"spectral": spectral, "sphere": sphere}[args.question](args)
