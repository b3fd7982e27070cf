"""Experiments made of cases: each case is measured once, kept in a file at once, and skipped the next time.

A module that is an experiment has

    TITLE                    what it shows
    cases(args)              list of cases, dicts of what JSON can hold, the seed among it; may raise UnavailableError
    measure(**case)          what was found for one case, a dict of what JSON can hold; may raise UnavailableError
    report(runs)             Markdown: the table, the paper's or the peers' numbers beside ours, what differs and why
    claims(runs)             optional: list of Claim, decided by the runs
    plot(runs, folder)       optional: writes pictures, returns their file names

and ends with ``if __name__ == "__main__": main(__name__)``. `runs` is a list of dicts, case and findings together.
A module with several questions has QUESTIONS, a dict of Question, and ``cases, measure, report = ask(QUESTIONS)``.

Methods that are compared are measured in one case, so that they see the same machine and load:
``{"methods": {name: findings}}``, the baseline first. `table` shows a row per method, and ratios to the baseline.

Results are JSON, ``results/NAME.json`` beside the module (NAME without ``bench_``): runs, each with the index of the
environment (versions and hardware) it was measured in. A file is replaced as a whole after each case. Quick runs go to
``results/quick/``, which is not kept: they never mix with real ones.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import functools
import gc
import itertools
import json
import multiprocessing
import os
import platform
import random
import re
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import numpy as np

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


@dataclass(frozen=True)
class Question:
    """One of several questions of an experiment: its cases and its table, as `table` takes it."""

    title: str
    cases: Callable[[argparse.Namespace], list[dict]]
    measure: Callable[..., dict]
    columns: str
    devices: tuple[str, ...] = ("cpu",)


def ask(questions):
    """`cases`, `measure` and `report` of an experiment with these questions; each case has the name of its question."""

    def cases(args):
        asked = {name: each for name, each in questions.items() if args.device in each.devices}
        return [{"question": name, **case} for name, each in asked.items() for case in each.cases(args)]

    def measure(question, **case):
        return questions[question].measure(**case)

    def report(runs):
        parts = [(each, select(runs, question=name)) for name, each in questions.items()]
        return "\n\n".join(f"### {each.title}\n\n{table(mine, each.columns)}" for each, mine in parts if mine)

    return cases, measure, report


class Runs:
    """The runs of one experiment in a file."""

    def __init__(self, file):
        self.file = file
        self.content = self._read()

    def _read(self):
        try:
            return json.loads(self.file.read_text()) if self.file.exists() else {"environments": [], "runs": []}
        except ValueError as error:
            raise ValueError(f"{self.file} is not JSON: restore it, or delete it to measure its runs again.") from error

    def __contains__(self, case):
        return any(run["case"] == case for run in self.content["runs"])

    def __iter__(self):
        known = [_machine(each) for each in self.content["environments"]]
        return ({"hardware": known[run["environment"]], **run["case"], **run["found"]} for run in self.content["runs"])

    def add(self, case, found, environment):
        """Keep a run in place of an older one of the same case; all others stay, also those of other processes."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(self.file.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            self.content = self._read()
            known, runs = self.content["environments"], self.content["runs"]
            if environment not in known:
                known.append(environment)
            run = {"case": case, "environment": known.index(environment), "found": found}
            self.content["runs"] = [*(other for other in runs if other["case"] != case), run]
            part = self.file.with_suffix(".part")  # a run that is stopped while it writes leaves the old file
            part.write_text(json.dumps(self.content, indent=1, ensure_ascii=False) + "\n")
            part.replace(self.file)
        finally:
            os.close(folder)


def results_file(module, *, quick=False):
    folder = Path(module.__file__).resolve().parent / "results"
    return (folder / "quick" if quick else folder) / f"{Path(module.__file__).stem.removeprefix('bench_')}.json"


def load_runs(module, *, quick=False):
    """The kept runs, as a list of dicts of case and findings."""
    return list(Runs(results_file(module, quick=quick)))


def perform(module, args):
    """Measure what is not yet there; returns the cases that could not be measured, with reasons.

    A case that raises does not stop the others: FailedCasesError comes after the last one.
    """
    from tqdm import tqdm

    runs = Runs(results_file(module, quick=args.quick))
    name = runs.file.stem
    try:
        on_device(args.device)
        wanted = getattr(args, "questions", None)
        cases = [case for case in module.cases(args) if not wanted or case["question"] in wanted]
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
                runs.add(case, found, versions(args.device))
                tqdm.write(f"{name}: {label}: {_brief(found)} ({time.perf_counter() - start:.1f} s)")
            bar.update()
    if failed:
        raise FailedCasesError(failed, missing)
    return missing


def _warn_of_other_machines(name, runs, device):
    """Cases name the device, not the machine, so runs of several machines would be compared."""
    here = hardware(device)
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
    found = found | {"methods": len(found["methods"])} if "methods" in found else found
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
    questions = getattr(module, "QUESTIONS", {})
    if questions:
        known = "; ".join(f"{name}: {question.title}" for name, question in questions.items())
        parser.add_argument("questions", nargs="*", help=f"some of its questions (all without any). {known}")
    parser.add_argument(
        "--plot", type=Path, metavar="FOLDER", help="write the pictures there (of quick runs: beside these)"
    )
    args = parser.parse_args()
    wanted = getattr(args, "questions", [])
    if unknown := set(wanted) - set(questions):
        parser.error(f"no such question: {', '.join(sorted(unknown))}. Choose from {', '.join(questions)}.")
    failed = None
    try:
        missing = [] if args.report else perform(module, args)
    except FailedCasesError as error:
        missing, failed = error.missing, error
    for reason in missing:
        print("not measured:", reason)
    runs = load_runs(module, quick=args.quick)
    if args.plot and runs and hasattr(module, "plot"):
        folder = results_file(module, quick=True).parent if args.quick else args.plot
        print(f"written to {folder}:", ", ".join(module.plot(runs, folder)) or "nothing")
    runs = [run for run in runs if not wanted or run["question"] in wanted]
    if runs:
        print(module.report(runs))
        print("\nMeasured on", ", ".join(sorted({run["hardware"] for run in runs})))
        for claim in getattr(module, "claims", lambda _: [])(runs):
            print(f"{'holds' if claim.holds else 'DOES NOT HOLD'}: {claim.text} ({claim.evidence})")
    if failed:
        sys.exit(f"failed: {failed}")


def grid(**axes):
    """Cases of all combinations; a value that is no list, tuple or range is the same in all of them."""
    several = [axis if isinstance(axis, list | tuple | range | dict) else [axis] for axis in axes.values()]
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*several)]


def versions(device="cpu"):
    """Versions and hardware, for the record."""
    accelerator = None
    if device == "cuda":
        import torch

        accelerator = torch.cuda.get_device_name()
    names = ("ntkit", "numpy", "scipy", "numba", "scikit-learn", "torch")
    about = Path("/proc/cpuinfo").read_text()
    return {
        "accelerator": accelerator,
        **{name: version(name) if name != "ntkit" else import_module(name).__version__ for name in names},
        "python": platform.python_version(),
        "cpu": re.search(r"model name\s*: (.*)", about)[1],
        "cores": len(os.sched_getaffinity(0)),
    }


def memory_mib(field="VmHWM"):
    """Peak resident memory of this process (getrusage would count what its parent held at the fork)."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+)", status)[1]) / 1024


def reset_peak():
    """Forget the peak so far (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def added_mib(function):
    """Peak memory beyond what is there already, the result included (Linux)."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what earlier calls left would be used again, and not be counted
    with Meter() as meter:
        function()
    return max(meter.peak_mib, 0.0)


def apart(function, *args, **options):
    """What a function of a module returns in a fresh process: its peak memory is its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args, **options).result()


def medians(functions, rounds, device="cpu"):
    """Median seconds of each function; they take turns, so that all see the same load of the machine.

    The order changes from round to round, and each starts after a pause: what one leaves behind (threads of OpenMP that
    spin for a while, memory to be given back) should not always be at the cost of the same other. On a CUDA device, by
    its own clock.
    """
    clock = _device_seconds if device == "cuda" else _seconds
    seconds = {name: [] for name in functions}
    order = list(functions)
    for _ in range(3 if device == "cuda" else 1):  # the first rounds compile and warm up
        for function in functions.values():
            function()
    for k in range(rounds):
        random.Random(k).shuffle(order)
        for name in order:
            seconds[name].append(clock(functions[name]))
    return {name: statistics.median(times) for name, times in seconds.items()}


def _seconds(function):
    time.sleep(0.05)
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _device_seconds(function):
    import torch

    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    function()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / 1000


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


@functools.lru_cache(maxsize=1)
def dataset(name):
    """A data set, kept for the next case, or UnavailableError with where it was looked for."""
    from ntkit.datasets import load_dataset

    try:
        return load_dataset(name)
    except (OSError, ValueError) as error:
        raise UnavailableError(str(error)) from error


def hardware(device):
    """The machine in a few words."""
    return _machine(versions(device))


def _machine(about):
    known = about.get("accelerator") or ("cpu" in about and f"{about.get('cores')} cores of {about['cpu']}")
    return known or "an unknown machine"


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


def methods_of(runs):
    """A row for each method of the runs, its baseline with it; runs without methods as they are."""
    return [
        {**run, **found, "method": name, "baseline": next(iter(run["methods"].items()))}
        for run in runs
        for name, found in run.get("methods", {}).items()
    ] + [run for run in runs if "methods" not in run]


def table(runs, columns):
    """Markdown table of findings, a row for each method of each run.

    `columns` are keys between spaces, with a format after a colon; ``seconds/:.2f`` is the ratio to the baseline. Lists
    (of seeds) show as mean ± deviation.
    """
    columns = [column.partition(":") for column in columns.split()]
    rows = methods_of(runs)
    base = ", ".join(dict.fromkeys(row["baseline"][0] for row in rows if "baseline" in row))
    header = [f"{key[:-1]} / {base}" if key.endswith("/") else key for key, _, _ in columns]
    cells = [[_cell(_value(row, key), form) for key, _, form in columns] for row in rows]
    return markdown_table([text.replace("_", " ") for text in header], cells)


def _value(row, key):
    if not key.endswith("/"):
        return row.get(key)
    own, base = row.get(key[:-1]), row["baseline"][1].get(key[:-1])
    return None if own is None or base is None else float(np.mean(own) / np.mean(base))


def _cell(value, form):
    if value is None:
        return "–"
    if isinstance(value, list) and form:
        spread = f" ± {format(np.std(value, ddof=1), form)}" if len(value) > 1 else ""
        return format(np.mean(value), form) + spread
    return format(value, form) if isinstance(value, int | float) else str(value).replace("|", "\\|")


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
