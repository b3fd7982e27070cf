"""What the benchmarks share: versions for the record, memory, medians of functions that take turns."""

from __future__ import annotations

import os
import platform
import random
import re
import statistics
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


def versions(device="numpy"):
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


def medians(functions, rounds):
    """Median seconds of each function; they take turns, so that all see the same load of the machine.

    The order changes from round to round, and each starts after a pause: what one leaves behind (threads of OpenMP that
    spin for a while, memory to be given back) should not always be at the cost of the same other.
    """
    seconds = {name: [] for name in functions}
    order = list(functions)
    for function in functions.values():
        function()
    for k in range(rounds):
        random.Random(k).shuffle(order)
        for name in order:
            time.sleep(0.05)
            start = time.perf_counter()
            functions[name]()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def device_medians(functions, rounds):
    """The same on a CUDA device, by its own clock."""
    import torch

    seconds = {name: [] for name in functions}
    for k in range(rounds + 3):  # the first rounds compile and warm up
        for name, function in functions.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            function()
            stop.record()
            stop.synchronize()
            if k >= 3:
                seconds[name].append(start.elapsed_time(stop) / 1000)
    return {name: statistics.median(times) for name, times in seconds.items()}
