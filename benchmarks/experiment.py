"""Experiments made of cases: each case is measured once, saved at once, and skipped the next time.

An experiment is a module with

    TITLE                    the subject
    cases(args)              list of cases (dicts that JSON can hold, with the seed); may raise UnavailableError
    measure(**case)          findings of one case (a dict that JSON can hold); may raise UnavailableError
    report(runs)             Markdown: our numbers next to the paper's or the other libraries', what differs and why
    claims(runs)             optional: list of Claim, decided by the runs
    plot(runs, folder)       optional: write pictures, return their file names

It ends with ``if __name__ == "__main__": main(__name__)``. `runs` is a list of dicts that join case and findings.
A module with several questions has QUESTIONS, a dict of Question, and ``cases, measure, report = ask(QUESTIONS)``.

Methods to be compared are measured in one case, so that machine and load are the same for all of them:
``{"methods": {name: findings}}``, the baseline first. `table` shows one row per method and ratios to the baseline.

Results are JSON files, ``results/NAME.json`` next to the module (NAME without ``bench_``): a list of runs, each with
the index of the environment (versions and hardware) of its measurement. The whole file is replaced after each case.
Quick runs are written to ``results/quick/``, which is not under version control, so that they never mix with real runs.
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
    """Some cases raised an exception; `missing` lists the cases that could not be measured, with reasons."""

    def __init__(self, failed, missing):
        super().__init__("; ".join(failed))
        self.missing = missing


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, whether it holds in our runs, and the numbers that decide."""

    text: str
    holds: bool
    evidence: str


@dataclass(frozen=True)
class Question:
    """One of several questions of an experiment; `columns` are the columns of its table, as in `table`."""

    title: str
    cases: Callable[[argparse.Namespace], list[dict]]
    measure: Callable[..., dict]
    columns: str
    devices: tuple[str, ...] = ("cpu",)


def ask(questions):
    """Return `cases`, `measure` and `report` of an experiment with these questions; each case names its question."""

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
    """The results file of one experiment."""

    def __init__(self, file):
        self.file = file
        self.content = self._read()

    def _read(self):
        try:
            return json.loads(self.file.read_text()) if self.file.exists() else {"environments": [], "runs": []}
        except ValueError as error:
            message = f"{self.file} is not valid JSON. Restore the file, or delete it to repeat its measurements."
            raise ValueError(message) from error

    def __contains__(self, case):
        return any(run["case"] == case for run in self.content["runs"])

    def __iter__(self):
        known = [_machine(each) for each in self.content["environments"]]
        return ({"hardware": known[run["environment"]], **run["case"], **run["found"]} for run in self.content["runs"])

    def add(self, case, found, environment):
        """Save a run, replacing an older run of the same case; keep all others, including runs of other processes."""
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
            part = self.file.with_suffix(".part")  # a process that is killed while writing leaves the old file intact
            part.write_text(json.dumps(self.content, indent=1, ensure_ascii=False) + "\n")
            part.replace(self.file)
        finally:
            os.close(folder)


def results_file(module, *, quick=False):
    folder = Path(module.__file__).resolve().parent / "results"
    return (folder / "quick" if quick else folder) / f"{Path(module.__file__).stem.removeprefix('bench_')}.json"


def load_runs(module, *, quick=False):
    """Return the saved runs, as a list of dicts that join case and findings."""
    return list(Runs(results_file(module, quick=quick)))


def perform(module, args):
    """Measure the missing cases; return those that could not be measured, with reasons.

    A case that raises an exception does not stop the others; FailedCasesError is raised after the last case.
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
    """Warn if saved runs come from another machine: cases name only the device, so their times would be compared."""
    here = hardware(device)
    about = [runs.content["environments"][run["environment"]] for run in runs.content["runs"]]
    others = {_machine(each) for each in about if bool(each.get("accelerator")) == (device == "cuda")} - {here}
    if others:
        print(
            f"warning: {name} has {device} runs of {', '.join(sorted(others))}; this is {here}. Times on different "
            "machines are not comparable: use --again to repeat all measurements here."
        )


def _out_of_memory(error):
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"  # torch.OutOfMemoryError


def _brief(found):
    found = found | {"methods": len(found["methods"])} if "methods" in found else found
    return ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items() if np.isscalar(v))


def arguments(parser=None):
    """Add the options that all experiments share."""
    parser = parser or argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smoke test with few rows and seeds; saved separately")
    parser.add_argument("--again", action="store_true", help="repeat measurements that are already saved")
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="device of the arrays")
    parser.add_argument("--report", action="store_true", help="only print the report of saved runs")
    return parser


def main(name):
    """Run the experiment module `name` as a script."""
    module = sys.modules[name]
    parser = arguments(
        argparse.ArgumentParser(description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    )
    questions = getattr(module, "QUESTIONS", {})
    if questions:
        known = "; ".join(f"{name}: {question.title}" for name, question in questions.items())
        parser.add_argument("questions", nargs="*", help=f"questions to measure (default: all). {known}")
    parser.add_argument(
        "--plot", type=Path, metavar="FOLDER", help="write pictures to this folder (quick runs: next to their results)"
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
    """Return the cases of all combinations; a value that is not a list, tuple, range or dict is constant."""
    several = [axis if isinstance(axis, list | tuple | range | dict) else [axis] for axis in axes.values()]
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*several)]


def versions(device="cpu"):
    """Return versions and hardware."""
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
    """Return the peak resident memory of this process (getrusage would include the parent's memory at the fork)."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+)", status)[1]) / 1024


def reset_peak():
    """Reset the peak memory of this process (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def added_mib(function):
    """Return how much a call raises the peak memory, including its result (Linux)."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # freed memory of earlier calls would be reused and not counted
    with Meter() as meter:
        function()
    return max(meter.peak_mib, 0.0)


def apart(function, *args, **options):
    """Call a module's function in a fresh process, so that its peak memory is its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args, **options).result()


def medians(functions, rounds, device="cpu"):
    """Return the median seconds of each function; functions take turns, so that all see the same load.

    The order changes from round to round, and each call starts after a pause. Otherwise the after-effects of one
    function (spinning OpenMP threads, memory still being freed) would always slow down the same other function. CUDA
    calls are timed with CUDA events.
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
    """Measure a block: ``with Meter(device) as meter: …`` sets `seconds` and `peak_mib`."""

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
    """Return NumPy arrays unchanged for "cpu", as GPU tensors for "cuda"."""
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
    """Load a data set and cache it for the next case; raise UnavailableError if it cannot be found."""
    from ntkit.datasets import load_dataset

    try:
        return load_dataset(name)
    except (OSError, ValueError) as error:
        raise UnavailableError(str(error)) from error


def hardware(device):
    """Describe the machine in a few words."""
    return _machine(versions(device))


def _machine(about):
    known = about.get("accelerator") or ("cpu" in about and f"{about.get('cores')} cores of {about['cpu']}")
    return known or "an unknown machine"


def machines(runs):
    """Describe the hardware of each device in the runs: ``cpu: 2 cores of …; cuda: …``."""
    names = {device: sorted({run["hardware"] for run in select(runs, device=device)}) for device in DEVICES}
    several = " (several machines: times are not comparable)"
    shown = {device: ", ".join(found) + several * (len(found) > 1) for device, found in names.items()}
    return "; ".join(f"{device}: {text}" for device, text in shown.items() if text)


def devices_of(runs):
    return [device for device in DEVICES if select(runs, device=device)]


def fullest(runs):
    """Return the runs of the device with the most runs: they decide claims while the others are incomplete."""
    return max((select(runs, device=device) for device in devices_of(runs)), key=len, default=[])


def select(runs, **wanted):
    """Return the runs that have these values."""
    return [run for run in runs if all(run.get(key) == value for key, value in wanted.items())]


def mean(runs, key):
    """Return the mean of a finding, or None if no run has it."""
    values = [run[key] for run in runs if run.get(key) is not None]
    return float(np.mean(values)) if values else None


def median(runs, key):
    """Return the median of a finding, or None if no run has it; for seconds, where a first call may compile."""
    values = [run[key] for run in runs if run.get(key) is not None]
    return float(np.median(values)) if values else None


def mean_deviation(runs, key, digits=2):
    """Format a finding over runs (seeds) as ``mean ± deviation``; one run gives the mean alone, none gives –."""
    values = [run[key] for run in runs if run.get(key) is not None]
    if not values:
        return "–"
    shown = f"{np.mean(values):.{digits}f}"
    return shown if len(values) == 1 else f"{shown} ± {np.std(values, ddof=1):.{digits}f}"


def methods_of(runs):
    """Return one row for each method of each run, with its baseline; runs without methods stay as they are."""
    return [
        {**run, **found, "method": name, "baseline": next(iter(run["methods"].items()))}
        for run in runs
        for name, found in run.get("methods", {}).items()
    ] + [run for run in runs if "methods" not in run]


def table(runs, columns):
    """Return a Markdown table of findings with one row for each method of each run.

    `columns` are keys separated by spaces, each with an optional format after a colon; ``seconds/:.2f`` is the ratio to
    the baseline. Lists (over seeds) are shown as mean ± deviation.
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
    """Return a Markdown table; the first column is left-aligned, the others right-aligned."""
    lines = ["| " + " | ".join(str(cell) for cell in row) + " |" for row in (header, *rows)]
    lines.insert(1, "|" + "|".join(["---"] + ["---:"] * (len(header) - 1)) + "|")
    return "\n".join(lines)


def pyplot():
    """Return pyplot with a backend that needs no screen, in the style of the documentation."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9, "figure.dpi": 110})
    return plt
