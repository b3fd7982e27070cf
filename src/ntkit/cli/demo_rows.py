"""First part of ``ntkit demo``: what a fit costs as the rows grow, with the exact kernel matrix and with features.

The exact kernel needs all n² pairs of rows: 8 n² bytes and O(n³) time. Features need one pass over the rows and keep
m² numbers, however many rows there are. The exact kernel is fitted up to `EXACT_ROWS` rows; beyond that its memory is
computed and its time extrapolated.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

ROWS = (1000, 2000, 4000, 8000, 32_000, 128_000, 500_000)
COMPONENTS = 1024
COLUMNS = 10
TEST_ROWS = 5000
DEPTH = 2
ALPHAS = (10.0, 30.0)  # penalties that the exact kernel may choose from
EXACT_ROWS = 8000  # largest fit of the exact kernel: 3 to 8 seconds on two cores
MATRICES = 2  # the exact fit holds the matrix and its factor

_EXACT, _FEATURES, _GREY, _RED = "#8c8c93", "#440154", "#5f5f66", "#a33a34"
_LINE = {"linewidth": 2, "markersize": 5}


def synthetic(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return normal rows and a smooth function of four of their columns, of variance 1 and without noise.

    Examples
    --------
    >>> X, f = synthetic(1000)
    >>> X.shape, f.shape, round(float(f.std()), 3)
    ((1000, 10), (1000,), 1.0)
    """
    X = np.random.default_rng(0).standard_normal((n, COLUMNS), dtype=np.float32)
    f = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + np.abs(X[:, 3])
    return X, (f - f.mean()) / f.std()


def matrix_bytes(n_rows: int) -> int:
    """Return the memory of the kernel matrix of `n_rows` rows.

    Examples
    --------
    >>> matrix_bytes(1_000_000) / 1e12  # terabytes
    8.0
    """
    return 8 * n_rows**2


def total_memory() -> int | None:
    """Return the bytes of memory of this machine or container, or None where they cannot be found out."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not Unix
        return None
    with suppress(OSError, ValueError):  # no limit
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


def measure(rows: Sequence[int] = ROWS, components: int = COMPONENTS) -> Iterator[dict[str, Any]]:
    """Fit both models on each number of rows and yield the measurements."""
    from ntkit._batching import free_memory
    from ntkit.features import NTKFeatures
    from ntkit.models import FeatureRidge, KernelRidge

    exact = KernelRidge("ntk", alphas=ALPHAS, depth=DEPTH, solver="direct", random_state=0)
    features = FeatureRidge(NTKFeatures(depth=DEPTH, n_components=components, random_state=0), random_state=0)
    X, f = synthetic(max(rows) + TEST_ROWS)
    y = (f + np.random.default_rng(1).standard_normal(len(f))).astype(np.float32)  # as much noise as signal
    test = X[-TEST_ROWS:], f[-TEST_ROWS:]
    for model in (exact, features):  # compiled code loads now, not inside a timing
        model.fit(X[:300], y[:300]).predict(X[:10])
    seconds, measured = 0.0, 0
    for n in rows:
        fits = MATRICES * matrix_bytes(n) < free_memory()
        found: dict[str, Any] = {"n_rows": n, "matrix_bytes": matrix_bytes(n), "exact_fits": fits, "exact": None}
        if fits and n <= EXACT_ROWS:
            found["exact"] = _fit_and_test(exact, X[:n], y[:n], *test)
            seconds, measured = found["exact"]["fit_seconds"], n
        found["exact_expected_seconds"] = seconds * (n / measured) ** 3 if measured else None
        found["features"] = _fit_and_test(features, X[:n], y[:n], *test)
        yield found


def _fit_and_test(model: Any, X: np.ndarray, y: np.ndarray, X_test: np.ndarray, f_test: np.ndarray) -> dict[str, Any]:
    """Return seconds and peak memory of a fit, and the mean squared error against the function without noise."""
    before = _reset_peak()
    start = time.perf_counter()
    model.fit(X, y)
    seconds = time.perf_counter() - start
    peak = None if before is None else max(0, _memory("VmHWM") - before)
    error = float(np.mean((model.predict(X_test) - f_test) ** 2))
    return {"fit_seconds": seconds, "peak_bytes": peak, "error": error}


def _reset_peak() -> int | None:
    """Start a new measurement of peak memory and return the memory in use now; None where this is not Linux."""
    with suppress(OSError, AttributeError):  # freed memory that the allocator keeps would be reused and not counted
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _memory("VmRSS")
    except OSError:
        return None


def _memory(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    match = re.search(rf"{field}:\s+(\d+)", status)
    return 1024 * int(match[1]) if match else 0


def plot(results: Sequence[dict[str, Any]], components: int = COMPONENTS, memory: int | None = None) -> Any:
    """Return a figure of memory, seconds and test error against the number of rows."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    figure = Figure(figsize=(11, 3.9), layout="constrained")
    axes = figure.subplots(1, 3)
    rows = [r["n_rows"] for r in results]
    exact = [r for r in results if r["exact"]]
    for ax, title in zip(axes, ("Memory", "Time to fit", "Test error"), strict=True):
        ax.set(xscale="log", yscale="log", xlabel="training rows", xlim=(rows[0] / 1.3, rows[-1] * 1.6))
        ax.set_title(title, loc="left", fontsize=12, fontweight="bold")
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(True, which="major", color="#ececef", linewidth=0.8)
        ax.set_axisbelow(True)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: thousands(x)))
        ax.xaxis.set_minor_formatter(NullFormatter())
    _draw_memory(axes[0], results, memory, components)
    for ax, key in zip(axes[1:], ("fit_seconds", "error"), strict=True):
        ax.plot([r["n_rows"] for r in exact], [r["exact"][key] for r in exact], "o-", color=_EXACT, **_LINE)
        ax.plot(rows, [r["features"][key] for r in results], "o-", color=_FEATURES, **_LINE)
        if exact:
            _label(ax, "exact kernel", exact[-1]["n_rows"], exact[-1]["exact"][key], (-9, -4), _GREY, "right")
        middle = results[-3] if len(results) > 3 else results[-1]
        place = (8, -13) if key == "fit_seconds" else (6, 5)
        _label(ax, f"{components} features", middle["n_rows"], middle["features"][key], place, _FEATURES, "left")
    axes[1].yaxis.set_major_formatter(FuncFormatter(lambda s, _: f"{s:g} s"))
    axes[1].margins(y=0.12)
    errors = [fit["error"] for r in results for fit in (r["exact"], r["features"]) if fit]
    axes[2].set_ylim(min(errors) / 1.1, max(errors) * 1.1)
    axes[2].yaxis.set_major_locator(FixedLocator([0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0]))
    axes[2].yaxis.set_major_formatter(FuncFormatter(lambda e, _: f"{e:g}"))
    axes[2].yaxis.set_minor_locator(NullLocator())
    return figure


def _label(ax: Any, text: str, x: float, y: float, offset: tuple[int, int], colour: str, side: str) -> None:
    """Write a name beside a point, `offset` points away from it."""
    ax.annotate(text, (x, y), xytext=offset, textcoords="offset points", color=colour, fontsize=10, ha=side)


def _draw_memory(ax: Any, results: Sequence[dict[str, Any]], memory: int | None, components: int) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    rows = np.array([r["n_rows"] for r in results])
    matrix = np.array([matrix_bytes(int(n)) for n in rows])
    limit, label = (memory, "this machine") if memory else (2**34, "a laptop")
    ax.axhspan(limit, 20 * matrix[-1], color="#f8ecec", linewidth=0)
    ax.axhline(limit, color=_RED, linewidth=1.2)
    _label(ax, f"{label}: {size(limit)}", rows[0], limit, (0, 5), _RED, "left")
    _label(ax, "does not fit", rows[0], matrix[-1], (0, 2), _RED, "left")
    last = max((i for i, r in enumerate(results) if r["exact"]), default=0)
    ax.plot(rows[: last + 1], matrix[: last + 1], "-", color=_EXACT, **_LINE)
    ax.plot(rows[last:], matrix[last:], "--", color=_EXACT, **_LINE)
    _label(ax, f"exact matrix: {size(matrix[-1])}", rows[-1], matrix[-1], (0, 6), _GREY, "right")
    peaks = [r["features"]["peak_bytes"] for r in results]
    if None not in peaks:
        ax.plot(rows, peaks, "o-", color=_FEATURES, **_LINE)
        _label(ax, f"{components} features: {size(peaks[-1])}", rows[-1], peaks[-1], (0, -16), _FEATURES, "right")
    ax.set_ylim(matrix[0] / 8, 20 * matrix[-1])
    ax.yaxis.set_major_locator(LogLocator(base=1024, numticks=9))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda b, _: size(b)))


def thousands(n: float) -> str:
    r"""Return a whole number with narrow spaces between groups of three digits.

    Examples
    --------
    >>> thousands(1000), thousands(500000)
    ('1\u202f000', '500\u202f000')
    """
    return f"{n:,.0f}".replace(",", "\u202f")


def size(n_bytes: float) -> str:
    """Return bytes in the unit that suits their size.

    Examples
    --------
    >>> size(8 * 1000**2), size(2**34), size(2e12)
    ('7.6 MiB', '16 GiB', '1.8 TiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if n_bytes < 1000 or unit == "TiB":
            break
        n_bytes /= 1024
    return f"{n_bytes:.0f} {unit}" if n_bytes >= 9.95 or unit == "B" else f"{n_bytes:.1f} {unit}".replace(".0 ", " ")
