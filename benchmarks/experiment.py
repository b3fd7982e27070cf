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
import traceback
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common import memory_mib, reset_peak, versions

DEVICES = ("cpu", "cuda")


class UnavailableError(Exception):
    """A case cannot be measured here: no such data set, package or device."""


class FailedCasesError(Exception):
    """Cases that raised, when all others have been measured; `missing` are those that could not be, with reasons."""

    def __init__(self, failed, missing):
        super().__init__("; ".join(failed))
        self.missing = missing


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
        try:
            self.content = json.loads(file.read_text()) if file.exists() else empty
        except ValueError as error:
            raise ValueError(f"{file} is not JSON: restore it, or delete it to measure its runs again.") from error

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
    """Measure what is not yet there; returns the cases that could not be measured, with reasons.

    A case that raises does not stop the others: FailedCasesError comes after the last one.
    """
    from tqdm import tqdm

    runs = Runs(results_file(module, quick=args.quick))
    name = Path(module.__file__).stem
    try:
        on_device(args.device)
        cases = module.cases(args)
    except UnavailableError as reason:
        return [f"{name}: {reason}"]
    left, missing, failed = [case for case in cases if args.again or case not in runs], [], []
    if left and not args.again:
        _warn_of_other_machines(name, runs, args.device)
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
            except Exception as error:
                if _out_of_memory(error):
                    missing.append(f"{name}: {label}: out of memory")
                else:
                    traceback.print_exc()
                    failed.append(f"{name}: {label}: {type(error).__name__}: {error}")
            else:
                runs.add(case, found, versions("cuda" if args.device == "cuda" else "numpy"))
                tqdm.write(f"{name}: {label}: {_brief(found)} ({time.perf_counter() - start:.1f} s)")
            bar.update()
    if failed:
        raise FailedCasesError(failed, missing)
    return missing


def _warn_of_other_machines(name, runs, device):
    """Cases name the device, not the machine, so runs of several machines would be compared."""
    here = _machine(versions("cuda" if device == "cuda" else "numpy"))
    about = [runs.content["environments"][run["environment"]] for run in runs.content["runs"]]
    others = {_machine(each) for each in about if bool(each.get("accelerator")) == (device == "cuda")} - {here}
    if others:
        print(
            f"warning: {name} has {device} runs of {', '.join(sorted(others))}; this is {here}. Times of several "
            "machines do not compare: --again measures all of them here."
        )


def _out_of_memory(error):
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"  # that of torch


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
    failed = None
    try:
        missing = [] if args.report else perform(module, args)
    except FailedCasesError as error:
        missing, failed = error.missing, error
    for reason in missing:
        print("not measured:", reason)
    runs = load_runs(module, quick=args.quick)
    if runs:
        print(module.report(runs))
        for claim in getattr(module, "claims", lambda _: [])(runs):
            print(f"{'holds' if claim.holds else 'DOES NOT HOLD'}: {claim.text} ({claim.evidence})")
    if failed:
        sys.exit(f"failed: {failed}")


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
    return _machine(versions("cuda" if device == "cuda" else "numpy"))


def _machine(about):
    return about.get("accelerator") or f"{about.get('cores')} cores of {about.get('cpu')}"


def machines(runs):
    """Each device of the runs and what it was: ``cpu: 2 cores of …; cuda: …``."""
    names = {device: sorted({run["hardware"] for run in select(runs, device=device)}) for device in DEVICES}
    several = " (several machines: their times do not compare)"
    shown = {device: ", ".join(found) + several * (len(found) > 1) for device, found in names.items()}
    return "; ".join(f"{device}: {text}" for device, text in shown.items() if text)


def devices_of(runs):
    return [device for device in DEVICES if select(runs, device=device)]


def fullest(runs):
    """The runs of the device that has most: these decide claims, also while the others are being measured."""
    return max((select(runs, device=device) for device in devices_of(runs)), key=len, default=[])


def select(runs, **wanted):
    """The runs whose case has these values."""
    return [run for run in runs if all(run.get(key) == value for key, value in wanted.items())]


def mean(runs, key):
    """Mean of a finding, None without any."""
    values = [run[key] for run in runs if run.get(key) is not None]
    return float(np.mean(values)) if values else None


def median(runs, key):
    """Median of a finding, None without any; for seconds, of which the first may be those of compiling."""
    values = [run[key] for run in runs if run.get(key) is not None]
    return float(np.median(values)) if values else None


def mean_deviation(runs, key, digits=2):
    """``mean ± deviation`` of one finding over runs (seeds); the mean alone of one run, – of none."""
    values = [run[key] for run in runs if run.get(key) is not None]
    if not values:
        return "–"
    shown = f"{np.mean(values):.{digits}f}"
    return shown if len(values) == 1 else f"{shown} ± {np.std(values, ddof=1):.{digits}f}"


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
