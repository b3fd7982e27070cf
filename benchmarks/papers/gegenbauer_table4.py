"""Table 4 of Han, Zandieh, Avron (ICML 2022): kernel ridge regression with the NTK of two ReLU layers.

python benchmarks/papers/gegenbauer_table4.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiment import Claim, devices_of, fullest, main, select
from papers import _gegenbauer as shared

TITLE = "Table 4: ridge regression, NTK"
PAPER = {  # mean squared error, seconds
    "elevation": {
        "Nyström": (0.61, 43.2), "Maclaurin": (2.88, 0.91), "PolySketch": (2.88, 7.64), "Gegenbauer": (0.94, 1.59),
    },
    "co2": {
        "Nyström": (0.43, 95.3), "Maclaurin": (0.63, 2.09), "PolySketch": (0.63, 16.1), "Gegenbauer": (0.51, 3.45),
    },
    "airtemp": {
        "Nyström": (3.12, 152), "Maclaurin": (3.32, 3.27), "PolySketch": (3.32, 24.6), "Gegenbauer": (3.13, 5.25),
    },
}  # fmt: skip
METHODS = ("nystroem", "maclaurin", "maclaurin, paper", "taylor", "polynomial", "random", "definition 8", "gegenbauer")
COMPARED = ("nystroem", "maclaurin, paper", "taylor", "definition 8")


def cases(args):
    return shared.regression_cases(args, lambda _: METHODS)


def measure(**case):
    return shared.regression("ntk", None, **case)


def report(runs):
    lines = [shared.preparation(runs)]
    for device in devices_of(runs):
        here = select(runs, device=device)
        lines += ["", shared.regression_table(f"{device}, NTK of depth 2", here, PAPER, shared.methods_of(here))]
    return "\n".join([*lines, "", _differences(runs)])


def _differences(runs):
    text = f"Differences from the paper: {shared.DATA} Protein is not in the paper's Table 4."
    here = fullest(runs)
    errors = shared.ranking(select(here, data="elevation"), COMPARED)
    if "taylor" in errors:
        text += (
            " The paper's PolySketch has the same error as its Maclaurin features "
            f"({PAPER['elevation']['PolySketch'][0]:g} on elevation); a sketch whose degrees share the features by "
            f"their weight has {errors['taylor']:.3f}."
        )
    return text


def claims(runs):
    here = fullest(runs)
    ranks = {name: shared.ranking(select(here, data=name), COMPARED) for name in ("elevation", "airtemp")}
    ranks = {name: errors for name, errors in ranks.items() if len(errors) == len(COMPARED)}
    out = []
    if ranks:
        best = [min((k for k in errors if k != "nystroem"), key=errors.get) for errors in ranks.values()]
        shown = "; ".join(f"{name}: {shared.listed(errors)}" for name, errors in ranks.items())
        out.append(
            Claim(
                "Gegenbauer features have the smallest error of the maps without landmarks (CO₂ not measured)",
                all(method == "definition 8" for method in best),
                shown,
            )
        )
        out.append(
            Claim(
                "Nyström features have the smallest error of all",
                all(next(iter(errors)) == "nystroem" for errors in ranks.values()),
                shown,
            )
        )
    if slower := shared.slowdown(here, ("elevation", "airtemp")):
        out.append(
            Claim(
                "Nyström features take many times as long as Gegenbauer features (up to 29 times in the paper; the "
                "criterion here is 10 times on one of the data sets)",
                max(slower.values()) >= 10,
                ", ".join(f"{name} {ratio:.1f} times" for name, ratio in slower.items()),
            )
        )
    return out


def plot(runs, folder):
    names = []
    for device in devices_of(runs):
        names.append(f"gegenbauer_table4_{device}.png")
        shared.plot_regression([shared.panels_of(select(runs, device=device))], Path(folder) / names[-1])
    return names


if __name__ == "__main__":
    main(__name__)
