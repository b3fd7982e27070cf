"""Figure 1 of Zandieh et al. (NeurIPS 2021): ReLU-NTK functions, and a polynomial of degree 8 for one of them.

    python benchmarks/papers/ntk_figure1.py

Nothing is random. It takes seconds on any machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiment import Claim, main, markdown_table, pyplot, select

TITLE = "Figure 1: normalized ReLU-NTK functions, and a polynomial of degree 8"
PAPER = {"depths": (2, 4, 8, 16, 32), "depth": 3, "degree": 8, "plateau": 0.3}
FITS = ("Taylor", "Chebyshev", "least squares", "non-negative")
ABOUT = {
    "Taylor": "Taylor series at 0",
    "Chebyshev": "interpolation at Chebyshev points",
    "least squares": "least squares over t",
    "non-negative": "`nonnegative_polynomial`: coefficients ≥ 0, exact at t = 1",
}
CLOSE = 0.01  # largest error, relative to K(1), that counts as close
FLAT = 0.05  # largest deviation, relative to K(1), that counts as nearly constant


def cases(args):  # noqa: ARG001
    return [{"part": "left", "depth": depth} for depth in PAPER["depths"]] + [
        {"part": "right", "depth": PAPER["depth"], "degree": PAPER["degree"], "fit": fit} for fit in FITS
    ]


def measure(*, part, depth, degree=None, fit=None):
    return knee(depth) if part == "left" else fit_error(depth, degree, fit)


def cosines():
    return np.cos(np.linspace(np.pi, 0, 20001))  # dense near ±1, where the functions have large curvature


def knee(depth):
    """Return values of K/(L + 1) on the plateau, and 1 − t where it is half way from 0.3 to 1."""
    from ntkit.kernels import relu_ntk

    t = cosines()
    values = relu_ntk(t, depth) / (depth + 1)
    half = np.interp((1 + PAPER["plateau"]) / 2, values, t)
    at = {f"at_{x:g}": float(np.interp(x, t, values)) for x in (-1.0, 0.0, 0.5)}
    return {**at, "at_1": float(values[-1]), "half_way": float(1 - half), "depth_half_way": float(depth * (1 - half))}


def polynomial(depth, degree, fit):
    """Return a polynomial that approximates K."""
    from numpy.polynomial import Chebyshev, Polynomial

    from ntkit.kernels import nonnegative_polynomial, relu_ntk, relu_ntk_taylor

    def function(t):
        return relu_ntk(t, depth)

    if fit == "Taylor":
        return Polynomial(relu_ntk_taylor(depth, degree))
    if fit == "Chebyshev":
        return Chebyshev.interpolate(function, degree)
    if fit == "least squares":
        t = np.linspace(-1, 1, 20001)
        return Polynomial.fit(t, function(t), degree)
    return Polynomial(nonnegative_polynomial(function, degree)[0])


def fit_error(depth, degree, fit):
    """Return the largest and the root mean squared error over [−1, 1], relative to K(1) = L + 1."""
    from ntkit.kernels import relu_ntk

    t = cosines()
    error = (polynomial(depth, degree, fit)(t) - relu_ntk(t, depth)) / (depth + 1)
    found = {"largest": float(np.abs(error).max()), "largest_at": float(t[np.abs(error).argmax()])}
    found["rms"] = float(np.sqrt(np.trapezoid(error**2, t) / 2))
    return found | {"largest_to_0.9": float(np.abs(error[np.abs(t) <= 0.9]).max())}


def report(runs):
    lines = ["Left: K(t)/(L + 1). The paper describes a plateau of about 0.3, then a sharp rise to 1 at t = 1.", ""]
    rows = [
        (f"L = {run['depth']}", *(f"{run[key]:.3f}" for key in ("at_-1", "at_0", "at_0.5", "at_1", "half_way")))
        for run in select(runs, part="left")
    ]
    lines += [markdown_table(("", "t = −1", "t = 0", "t = 0.5", "t = 1", "1 − t at 0.65"), rows), ""]
    lines += [
        "Right: errors of polynomials of degree 8 for L = 3, relative to K(1). The paper shows one of unnamed kind.",
        "",
    ]
    rows = [
        (ABOUT[run["fit"]], f"{run['largest']:.4f}", f"{run['largest_at']:.3f}", f"{run['largest_to_0.9']:.4f}",
         f"{run['rms']:.4f}")
        for run in select(runs, part="right")
    ]  # fmt: skip
    lines.append(markdown_table(("", "largest", "at t", "largest, abs(t) ≤ 0.9", "root mean square"), rows))
    lines += ["", _differences(runs)]
    return "\n".join(lines)


def _differences(runs):
    text = "Differences from the paper: the curves are the same functions; the paper gives no numbers for them."
    fits = select(runs, part="right")
    if fits:
        best = min(fits, key=lambda run: run["largest"])
        text += (
            " How close a polynomial of degree 8 comes depends on t: the smallest of the largest errors is "
            f"{100 * best['largest']:.1f} % of K(1), near t = {best['largest_at']:.2f}, because K has a root "
            "singularity at 1; for abs(t) ≤ 0.9 the best fit is within "
            f"{100 * min(run['largest_to_0.9'] for run in fits):.2f} %. The fit with coefficients ≥ 0, which "
            "sketching requires, is less close there."
        )
    return text


def claims(runs):
    found = []
    left = sorted(select(runs, part="left"), key=lambda run: run["depth"])
    if len(left) == len(PAPER["depths"]):
        spread = [run["at_0.5"] - run["at_-1"] for run in left]
        last = left[-1]
        flat = max(abs(last[key] - PAPER["plateau"]) for key in ("at_-1", "at_0", "at_0.5")) <= FLAT
        found.append(Claim(
            "With growing depth the function approaches a knee: flat at about 0.3 (L + 1), then a rise to L + 1",
            bool(flat and all(np.diff(spread) < 0) and abs(last["at_1"] - 1) < 1e-6),
            f"from t = −1 to 0.5, K/(L + 1) rises by {spread[0]:.3f} at L = {left[0]['depth']} and by "
            f"{spread[-1]:.3f}, from {last['at_-1']:.3f} to {last['at_0.5']:.3f}, at L = {last['depth']}",
        ))  # fmt: skip
        scaled = [run["depth_half_way"] for run in left]
        found.append(Claim(
            "The rise takes place within a distance of order 1/L from t = 1",
            bool(max(scaled) <= 1),
            f"L (1 − t) where K/(L + 1) is half way up: {', '.join(f'{value:.2f}' for value in scaled)}",
        ))  # fmt: skip
    fits = select(runs, part="right")
    if fits:
        best = {key: min(fits, key=lambda run: run[key]) for key in ("rms", "largest")}
        for key, text in (("rms", "on average over t"), ("largest", "at every t")):
            run = best[key]
            found.append(Claim(
                f"A polynomial of degree 8 is close to K of depth 3 {text} (within {CLOSE:.0%} of K(1))",
                bool(run[key] <= CLOSE),
                f"{100 * run[key]:.2f} % ({run['fit']})",
            ))  # fmt: skip
    return found


def plot(runs, folder):
    from ntkit.display import plot_relu_ntk
    from ntkit.kernels import relu_ntk

    plt = pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    plot_relu_ntk(PAPER["depths"], ax=left)
    left.set_title("normalized ReLU-NTK functions")
    t, depth, degree = cosines(), PAPER["depth"], PAPER["degree"]
    right.plot(t, relu_ntk(t, depth), color="0.2", linewidth=3.5, alpha=0.35, label="K, L = 3")
    largest = {run["fit"]: run["largest"] for run in select(runs, part="right")}
    styles = zip(("Taylor", "least squares", "non-negative"), (":", "--", "-"), ("C1", "C0", "C2"), strict=True)
    for fit, style, color in styles:
        error = f" (error {100 * largest[fit]:.1f} %)" if fit in largest else ""
        right.plot(t, polynomial(depth, degree, fit)(t), style, color=color, linewidth=1.4, label=f"{fit}{error}")
    right.set(xlabel="cosine t", ylabel="K$_{relu}^{(3)}$(t)", xlim=(-1, 1), title="polynomials of degree 8")
    right.legend(frameon=False, loc="upper left")
    file = Path(folder) / "ntk_figure1.png"
    figure.savefig(file, dpi=150)
    plt.close(figure)
    return [file.name]


if __name__ == "__main__":
    main(__name__)
