"""Spectral errors of Gegenbauer features and other maps of the Gaussian against the number of features (Theorem 9).

    python benchmarks/bench_zonal.py

The theorem is that of Han, Zandieh, Avron, "Random Gegenbauer Features for Scalable Kernel Methods", ICML 2022. Its
tables and its figure are in papers/.
"""

from __future__ import annotations

import argparse
import json

import numpy as np

from common import RESULTS, versions
from experiment import pyplot
from papers._gegenbauer import SEEDS, make

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


def save(question, values):
    results = json.loads(FILE.read_text()) if FILE.exists() else {}
    results["versions"] = versions()
    results[question] = values
    FILE.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few sizes, nothing saved")
    spectral(parser.parse_args())
