"""Gegenbauer features: spectral error by number of features (Theorem 9), and ridge regression on places and months.

`spectral` compares them with other maps of the Gaussian kernel. `sphere` is ridge regression on a place on the sphere
and a month: test errors and seconds of GegenbauerFeatures with and without groups="auto", and of NystroemFeatures.

The theorem is from Han, Zandieh, Avron, "Random Gegenbauer Features for Scalable Kernel Methods", ICML 2022. The tables
and the figure of this paper are reproduced in papers/.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiment import Meter, Question, ask, dataset, grid, main, pyplot, select
from papers._gegenbauer import SEEDS, make, ridge, table

TITLE = "Gegenbauer features: spectral errors, places and months"
LABELS = ("definition 8", "orthogonal 8", "gegenbauer", "fourier", "orthogonal", "taylor")


def spectral_cases(args):
    if args.quick:
        return grid(d=(3, 64), m=64, n=200, lam=1.0)
    return grid(d=(3, 9, 64), m=[2**k for k in range(6, 14)], n=1000, lam=1.0)


def spectral(d, m, n, lam):
    """Measure the mean spectral ε of maps of the Gaussian on unit rows, and the bound of Theorem 9 for Definition 8."""
    from ntkit.diagnostics import spectral_error, statistical_dimension
    from ntkit.kernels import gaussian
    from ntkit.kernels.zonal import harmonic_dimension, radial_functions

    X = np.random.default_rng(d).standard_normal((n, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    K = gaussian(X, lengthscale=1.0)
    s = statistical_dimension(K, lam)
    energies = (radial_functions("gaussian", [1.0], 30, 30, d)[0] ** 2).sum(axis=1)
    leverage = sum(
        min(harmonic_dimension(k, d) * np.pi**2 * (k + 1) ** 2 / (6 * lam) * n * e, float(harmonic_dimension(k, d)))
        for k, e in enumerate(energies)
    )
    found = {"theorem": {"epsilon": float(np.sqrt(8 / 3 * np.log(16 * s / 0.1) * leverage / m))}}
    for label in LABELS:
        errors = []
        for seed in SEEDS:
            feature_map = make("gegenbauer" if label == "orthogonal 8" else label, "gaussian", m, seed)
            if label == "orthogonal 8":
                feature_map.set_params(harmonics=False)
            errors.append(spectral_error(K, feature_map.fit(X).transform(X), lam))
        found[label] = {"epsilon": float(np.mean(errors))}
    return {"statistical_dimension": s, "leverage": leverage, "methods": found}


def plot(runs, folder):
    plt = pyplot()
    runs = select(runs, question="spectral")
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.8), constrained_layout=True, sharey=True)
    styles = {
        "theorem": ("0.6", ":", "Theorem 9, bound for Definition 8"),
        "definition 8": ("C0", "-", "Gegenbauer, Definition 8"),
        "orthogonal 8": ("C0", "--", "Definition 8, orthogonal directions"),
        "gegenbauer": ("C3", "-", "Gegenbauer"),
        "fourier": ("0.3", "-", "Fourier"),
        "orthogonal": ("0.3", "--", "Orthogonal Fourier"),
        "taylor": ("C2", "-", "DotProductSketch"),
    }
    for ax, d in zip(axes, (3, 9, 64), strict=True):
        mine = select(runs, d=d)
        for label, (color, line, text) in styles.items():
            errors = [run["methods"][label]["epsilon"] for run in mine]
            ax.loglog([run["m"] for run in mine], np.maximum(errors, 1e-8), line, color=color, label=text)
        dimension = mine[0]["statistical_dimension"] if mine else np.nan
        ax.set(title=f"d = {d}, statistical dimension {dimension:.0f}", xlabel="features")
    axes[0].set(ylabel="spectral ε at λ = 1", ylim=(1e-8, 1e2))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(Path(folder) / "zonal_spectral.png", dpi=110)
    plt.close(figure)
    return ["zonal_spectral.png"]


FIELDS = ("airtemp", "airtemp, circle", "airtemp, 1 to 12", "airtemp, standardized", "ocean", "ocean, circle")
SCALES = (0.1, 0.14, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4)


def field_rows(name, seed, n):
    """Return unit vectors of places with columns for the month, and targets.

    `airtemp`: air temperatures of all places. `ocean`: synthetic; depths (km) of the sea, without places on land,
    multiplied by 1 + 0.3 s z, plus 5 s z, where s = sin(2π(month − 3)/12) is the season. The month is scaled to
    −¼ … ¼, or the cosine and sine on a circle of radius ¼, or 1 to 12.
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


def sphere_cases(args):
    n, m, seeds = (3000, 128, 1) if args.quick else (60000, 1024, len(SEEDS))
    return grid(field=FIELDS[::5] if args.quick else FIELDS, n=n, m=m, seeds=seeds)


def sphere(field, n, m, seeds):
    """Measure test errors and seconds of fit and transform; the length scale is tuned with Nyström features."""
    X, y = field_rows(field, 100, n // 5)
    split, errors = len(X) * 5 // 6, {}
    for scale in SCALES:
        lengthscale = (
            scale / 0.577 if "standardized" in field else scale
        )  # standard deviation of an entry of a unit vector
        Z = make("nystroem", "gaussian", m, 0, lengthscale=lengthscale).fit_transform(X)
        errors[lengthscale] = ridge(Z[:split], y[:split], Z[split:], y[split:])[0]
    lengthscale = min(errors, key=errors.get)
    maps = {"nystroem": None, "groups=None": None, "groups='auto'": "auto"}
    found = {label: {"mse": [], "seconds": []} for label in maps}
    split = n * 9 // 10
    for seed in range(seeds):
        X, y = field_rows(field, seed, n)
        for label, groups in maps.items():
            kind = "nystroem" if label == "nystroem" else "gegenbauer"
            feature_map = make(kind, "gaussian", m, seed, lengthscale=lengthscale)
            if kind == "gegenbauer":
                feature_map.set_params(groups=groups)
            feature_map.fit(X[: 2 * m]).transform(X[: 2 * m])  # compiles the code
            with Meter() as meter:
                Z = feature_map.fit(X[:split]).transform(X)
            found[label]["mse"].append(ridge(Z[:split], y[:split], Z[split:], y[split:])[0])
            found[label]["seconds"].append(meter.seconds)
    groups = [[int(column) for column in group] for group in feature_map.groups_]
    return {"lengthscale": lengthscale, "groups": groups, "methods": found}


QUESTIONS = {
    "spectral": Question(
        "Spectral ε by number of features", spectral_cases, spectral,
        "d m method epsilon:.2g",
    ),
    "sphere": Question(
        "A place and a month", sphere_cases, sphere,
        "field method mse:.4g mse/:.3f seconds:.2g seconds/:.2f lengthscale",
    ),
}  # fmt: skip
cases, measure, report = ask(QUESTIONS)


if __name__ == "__main__":
    main(__name__)
