"""Experiments made of cases: each case is measured once, kept in a file at once, and skipped the next time.

A module that is an experiment has

    TITLE                    what it shows
    cases(args)              list of cases, dicts of what JSON can hold, the seed among it; may raise UnavailableError
    measure(**case)          what was found for one case, a dict of what JSON can hold; may raise UnavailableError
    report(runs)             Markdown: the table, the paper's or the peers' numbers beside ours, what differs and why
    claims(runs)             optional: list of Claim, decided by the runs
    plot(runs, folder)       optional: writes pictures, returns their file names

and ends with ``if __name__ == "__main__": main(__name__)``. `runs` is a list of dicts, case and findings together.

Results are JSON, ``results/NAME.json`` beside the module: runs, each with the number of the environment (versions and
hardware) it was measured in. Quick runs go to ``results/quick/``, which is not kept: they never mix with real ones.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common import memory_mib, reset_peak, versions

DEVICES = ("cpu", "cuda")


class UnavailableError(Exception):
    """A case cannot be measured here: no such data set, package or device."""


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, whether it held here, and the numbers that decide."""

    text: str
    holds: bool
    evidence: str


class Runs:
    """The runs of one experiment in a file."""

    def __init__(self, file):
        self.file = file
        empty = {"environments": [], "runs": []}
        self.content = json.loads(file.read_text()) if file.exists() else empty

    def __contains__(self, case):
        return any(run["case"] == case for run in self.content["runs"])

    def __iter__(self):
        return ({**run["case"], **run["found"]} for run in self.content["runs"])

    def add(self, case, found, environment):
        known = self.content["environments"]
        if environment not in known:
            known.append(environment)
        runs = [run for run in self.content["runs"] if run["case"] != case]
        self.content["runs"] = [*runs, {"case": case, "environment": known.index(environment), "found": found}]
        self.file.parent.mkdir(parents=True, exist_ok=True)
        whole = self.file.with_suffix(".part")  # a run that is stopped while it writes leaves the old file
        whole.write_text(json.dumps(self.content, indent=1) + "\n")
        whole.replace(self.file)


def results_file(module, *, quick=False):
    folder = Path(module.__file__).resolve().parent / "results"
    return (folder / "quick" if quick else folder) / f"{Path(module.__file__).stem}.json"


def load_runs(module, *, quick=False):
    """The kept runs, as a list of dicts of case and findings."""
    return list(Runs(results_file(module, quick=quick)))


def perform(module, args):
    """Measure what is not yet there; returns the cases that could not be measured, with reasons."""
    from tqdm import tqdm

    runs = Runs(results_file(module, quick=args.quick))
    name = Path(module.__file__).stem
    try:
        on_device(args.device)
        cases = module.cases(args)
    except UnavailableError as reason:
        return [f"{name}: {reason}"]
    left, missing = [case for case in cases if args.again or case not in runs], []
    with tqdm(total=len(cases), initial=len(cases) - len(left), desc=name, disable=None) as bar:
        for case in left:
            label = ", ".join(str(value) for value in case.values())
            bar.set_postfix_str(label)
            gc.collect()
            start = time.perf_counter()
            try:
                found = module.measure(**case)
            except UnavailableError as reason:
                missing.append(f"{name}: {label}: {reason}")
            else:
                runs.add(case, found, versions("cuda" if args.device == "cuda" else "numpy"))
                tqdm.write(f"{name}: {label}: {_brief(found)} ({time.perf_counter() - start:.1f} s)")
            bar.update()
    return missing


def _brief(found):
    return ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items() if np.isscalar(v))


def arguments(parser=None):
    """The options all experiments have."""
    parser = parser or argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rows and seeds, to see that all works; kept apart")
    parser.add_argument("--again", action="store_true", help="measure again what is already there")
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="where arrays are")
    parser.add_argument("--report", action="store_true", help="measure nothing, print the report of what is there")
    return parser


def main(name):
    """Run the experiment that this module is, as a script."""
    module = sys.modules[name]
    parser = arguments(
        argparse.ArgumentParser(description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    )
    args = parser.parse_args()
    for reason in [] if args.report else perform(module, args):
        print("not measured:", reason)
    runs = load_runs(module, quick=args.quick)
    if runs:
        print(module.report(runs))
        for claim in getattr(module, "claims", lambda _: [])(runs):
            print(f"{'holds' if claim.holds else 'DOES NOT HOLD'}: {claim.text} ({claim.evidence})")


class Meter:
    """Seconds and peak memory of a block: ``with Meter(device) as meter: …``, then `seconds`, `peak_mib`."""

    def __init__(self, device="cpu"):
        self.device = device

    def __enter__(self):
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated() / 2**20
        else:
            reset_peak()
            self._before = memory_mib("VmRSS")
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_):
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() / 2**20
        else:
            peak = memory_mib()
        self.seconds = time.perf_counter() - self._start
        self.peak_mib = peak - self._before


def on_device(device, *arrays):
    """NumPy arrays as they are, or as tensors of the GPU."""
    if device == "cpu":
        return arrays
    import torch

    if not torch.cuda.is_available():
        raise UnavailableError("no CUDA device")
    return tuple(torch.from_numpy(np.ascontiguousarray(array)).cuda() for array in arrays)


def to_numpy(values):
    return values.cpu().numpy() if hasattr(values, "cpu") else np.asarray(values)


def dataset(name):
    """A data set, or UnavailableError with where it was looked for."""
    from ntkit.datasets import load_dataset

    try:
        return load_dataset(name)
    except (OSError, ValueError) as error:
        raise UnavailableError(str(error)) from error


def hardware(device):
    """The machine in a few words."""
    about = versions("cuda" if device == "cuda" else "numpy")
    return about["accelerator"] or f"{about['cores']} cores of {about['cpu']}"


def machines(runs):
    """Each device of the runs and what it was: ``cpu: 2 cores of …; cuda: …``."""
    names = {device: sorted({run["hardware"] for run in select(runs, device=device)}) for device in DEVICES}
    return "; ".join(f"{device}: {', '.join(found)}" for device, found in names.items() if found)


def devices_of(runs):
    return [device for device in DEVICES if select(runs, device=device)]


def select(runs, **wanted):
    """The runs whose case has these values."""
    return [run for run in runs if all(run.get(key) == value for key, value in wanted.items())]


def mean(runs, key):
    """Mean of a finding, None without any."""
    values = [run[key] for run in runs if run.get(key) is not None]
    return float(np.mean(values)) if values else None


def mean_deviation(runs, key, digits=2):
    """``mean ± deviation`` of one finding over runs (seeds); the mean alone of one run, – of none."""
    values = [run[key] for run in runs if run.get(key) is not None]
    if not values:
        return "–"
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1):.{digits}f}"


def markdown_table(header, rows):
    """A Markdown table; the first column to the left, the others to the right."""
    lines = ["| " + " | ".join(str(cell) for cell in row) + " |" for row in (header, *rows)]
    lines.insert(1, "|" + "|".join(["---"] + ["---:"] * (len(header) - 1)) + "|")
    return "\n".join(lines)


def pyplot():
    """Plots without a screen, in the look of the documentation."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9, "figure.dpi": 110})
    return plt
