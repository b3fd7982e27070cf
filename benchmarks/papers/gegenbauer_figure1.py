"""Figure 1 of Han, Zandieh, Avron (ICML 2022): errors of Taylor, Chebyshev and Gegenbauer series.

    python benchmarks/papers/gegenbauer_figure1.py

The largest error on [−1, 1], at 4001 points, of expansions of e^{2t} (the Gaussian of length scale √½ on the sphere,
up to a factor) and of the NTK of two ReLU layers. The Taylor series is the case d = ∞, the Chebyshev series d = 2.
Nothing is random.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiment import Claim, main, markdown_table, pyplot, select

TITLE = "Figure 1: errors of Gegenbauer series"
PAPER = {"degree": 15, "kernels": ("gaussian", "ntk"), "dimensions": (2, 4, 8, 32)}  # the paper prints no numbers
BASES = {"taylor": "Taylor (d = ∞)", 32: "d = 32", 8: "d = 8", 4: "d = 4", 2: "Chebyshev (d = 2)"}
KERNELS = {"gaussian": "Gaussian, $e^{2t}$", "ntk": "NTK of two ReLU layers"}
DEGREES = range(1, 41)


def cases(args):
    degrees = range(1, 17) if args.quick else DEGREES
    return [{"kernel": kernel, "basis": basis, "degree": max(degrees)} for kernel in KERNELS for basis in BASES]


def measure(*, kernel, basis, degree):
    from numpy.polynomial.polynomial import polyval
    from scipy.special import factorial

    from ntkit.kernels import relu_ntk, relu_ntk_taylor
    from ntkit.kernels.zonal import gegenbauer_coefficients, gegenbauer_series

    t = np.cos(np.linspace(0, np.pi, 4001))
    exact = np.exp(2 * t) if kernel == "gaussian" else relu_ntk(t, 2)
    j = np.arange(100)
    if basis == "taylor":
        a = 2.0**j / factorial(j) if kernel == "gaussian" else relu_ntk_taylor(2, degree)
        series = [polyval(t, a[: q + 1]) for q in range(1, degree + 1)]
    else:
        spec = {"kernel": 2.0**j / factorial(j)} if kernel == "gaussian" else {"kernel": "ntk", "depth": 2}
        c = gegenbauer_coefficients(degree=degree, n_features=basis, **spec)
        series = [gegenbauer_series(c[: q + 1], t, basis) for q in range(1, degree + 1)]
    return {"errors": [float(np.abs(values - exact).max()) for values in series]}


def errors_of(runs, kernel):
    """Return the errors by basis, from degree 1."""
    found = {run["basis"]: run["errors"] for run in select(runs, kernel=kernel)}
    return {basis: found[basis] for basis in BASES if basis in found}


def report(runs):
    lines = ["Largest error on [−1, 1]; the paper shows curves up to degree 15, without numbers."]
    for kernel in KERNELS:
        errors = errors_of(runs, kernel)
        length = max((len(values) for values in errors.values()), default=0)
        degrees = [q for q in (5, 10, 15, 20, 30, 40) if q <= length]
        rows = [(BASES[basis], *(_at(values, q) for q in degrees)) for basis, values in errors.items()]
        lines += ["", markdown_table((f"{kernel}, degree", *degrees), rows)]
    return "\n".join([*lines, "", _differences(runs)])


def _at(values, degree):
    return f"{values[degree - 1]:.1e}" if degree <= len(values) else "–"


def _differences(runs):
    text = (
        "Differences from the paper: the paper stops at degree 15, because its coefficients, computed by adaptive "
        "quadrature, are unstable for higher degrees in high dimensions. Ours are stable for all degrees."
    )
    ntk = {basis: values for basis, values in errors_of(runs, "ntk").items() if len(values) > PAPER["degree"]}
    if ntk:
        best = min(ntk, key=lambda basis: ntk[basis][-1])
        text += (
            f" The NTK needs higher degrees: its smallest error falls from {min(v[14] for v in ntk.values()):.1e} at "
            f"degree 15 to {ntk[best][-1]:.1e} at {len(ntk[best])}."
        )
    return text


def claims(runs):
    out = []
    for kernel, title in (("gaussian", "Gaussian"), ("ntk", "NTK")):
        errors = errors_of(runs, kernel)
        if len(errors) < len(BASES) or min(map(len, errors.values())) < PAPER["degree"]:
            continue
        top = PAPER["degree"]
        best = min(PAPER["dimensions"], key=lambda d: errors[d][top - 1])
        ahead = [min(errors[d][q] for d in PAPER["dimensions"]) < errors["taylor"][q] for q in range(top)]
        out.append(
            Claim(
                f"{title}: with the right d a Gegenbauer series is closer than the Taylor series, up to degree {top}",
                all(ahead),
                f"at {sum(ahead)} of {top} degrees; at degree {top} {errors[best][top - 1]:.1e} (d = {best}) against "
                f"{errors['taylor'][top - 1]:.1e}",
            )
        )
    return out


def plot(runs, folder):
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    colors = dict(zip(BASES, plt.cm.viridis(np.linspace(0, 0.9, len(BASES))), strict=True))
    for ax, (kernel, title) in zip(axes, KERNELS.items(), strict=True):
        for basis, values in errors_of(runs, kernel).items():
            degrees = np.arange(1, len(values) + 1)
            ax.semilogy(degrees, values, color=colors[basis], label=BASES[basis], marker="o", ms=2.5, lw=1.2)
        ax.axvline(PAPER["degree"], color="0.7", lw=0.8, ls=":")
        ax.set(title=title, xlabel="degree", ylabel="largest error on [−1, 1]")
    axes[0].set_ylim(1e-16, 20)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(Path(folder) / "gegenbauer_figure1.png", dpi=150)
    plt.close(figure)
    return ["gegenbauer_figure1.png"]


if __name__ == "__main__":
    main(__name__)
