"""The plot and the HTML page of a comparison, and helpers for output folders and PNG files."""

from __future__ import annotations

import html
import io
import os
import platform
import warnings
from base64 import b64encode
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ntkit import __version__
from ntkit._files import replacing
from ntkit.cli.texts import number
from ntkit.display import check_matplotlib

FILES = {"compare": ("comparison.png", "comparison.html"), "demo": ("rows.png", "digits.png")}
_MADE_BY = "ntkit"  # stored near the start of plots and pages, to recognize them later
_COLOURS = ("#440154", "#3b7dd8", "#e07b00", "#2a9d5c", "#c2255c", "#7a7a7a", "#8c6d31", "#17becf")
_MARKERS = {"polynomial": "o", "random": "s", "sketch": "^", "Fourier": "o", "RBFSampler": "s", "exact": "*", "": "D"}
_DASHES = {"random": (0, (4, 2)), "sketch": (0, (1, 1.5)), "RBFSampler": (0, (4, 2))}
_LEVELS: dict[str, Any] = {
    "exact": (0, (8, 3)),
    "": (0, (1, 3)),
}  # methods without a number of features are horizontal lines
_STYLE = """
:root { color-scheme: light }
body { font: 16px/1.5 system-ui, sans-serif; color: #1c1c1e; max-width: 60rem; margin: 0 auto; padding: 1rem }
h1 { font-size: 1.5rem; line-height: 1.2; margin: .5rem 0 1rem }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem }
img { width: 100%; height: auto }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 0 }
dt { color: #666 }
dd { margin: 0; overflow-wrap: anywhere }
.wide { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .9rem }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #e4e4e7; white-space: nowrap }
th { border-bottom: 2px solid #1c1c1e }
td.text, th.text { text-align: left }
tr.best td { background: #efe6f5; font-weight: 600 }
code { background: #f4f4f5; padding: .1rem .3rem; border-radius: .2rem; overflow-wrap: anywhere }
footer { color: #666; font-size: .85rem; margin-top: 2rem }
"""


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    packages = ("numpy", "scipy", "scikit-learn", "numba")
    return {"python": platform.python_version(), "ntkit": __version__} | {name: version(name) for name in packages}


def write(report: dict[str, Any], folder: Path) -> list[str]:
    """Write the plot and the page of a report. Return their paths."""
    picture = as_png(_plot(report["results"], report["error_label"])) if can_plot() else b""
    files = dict(zip(FILES["compare"], (picture, _page(report, picture).encode()), strict=True))
    return write_files(folder, {name: content for name, content in files.items() if content})


def write_files(folder: Path, contents: dict[str, bytes]) -> list[str]:
    """Write all files or none into a folder, which is created if necessary. Return their paths."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            files = [stack.enter_context(replacing(folder / name)) for name in contents]
            for file, content in zip(files, contents.values(), strict=True):
                file.write(content)
                file.flush()
    except BaseException:
        for path in new:
            with suppress(OSError):
                path.rmdir()
        raise
    return [str(folder / name) for name in contents]


def check_folder(folder: Path) -> None:
    """Raise unless files can be written there. Called before the work, so that no result is lost."""
    existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not existing.is_dir():
        raise NotADirectoryError(f"The output '{folder}' must be a folder, but '{existing}' is a file. Name another.")
    if not os.access(existing, os.W_OK):
        raise PermissionError(f"The folder '{existing}' cannot be written to.")


def can_plot() -> bool:
    """Tell whether matplotlib is installed."""
    try:
        check_matplotlib("The plot")
    except ImportError:
        return False
    return True


def warn_without_plots() -> None:
    """Warn that there will be no plot if matplotlib is missing."""
    if not can_plot():
        warnings.warn("There will be no plot, as matplotlib is missing: pip install 'ntkit[plot]'.", stacklevel=2)


def is_ours(path: Path) -> bool:
    """Tell whether a plot or a page was written by this module."""
    with open(path, "rb") as file:
        start = file.read(4096)
    return any(mark in start for mark in (f"Software\0{_MADE_BY}".encode(), _generator().encode()))


def as_png(figure: Any) -> bytes:
    """Return a figure as the bytes of a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150, metadata={"Software": _MADE_BY})
    return file.getvalue()


def _generator() -> str:
    return f'<meta name="generator" content="{_MADE_BY}">'


def two_axes(height: float, **options: Any) -> tuple[Any, Any, Any]:
    """Return a figure without a window, and its two axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, height), layout="constrained")
    left, right = figure.subplots(1, 2, **options)
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    return figure, left, right


def _plot(results: Sequence[dict[str, Any]], label: str) -> Any:
    """Plot the error against the fit time and against the number of features."""
    figure, time, size = two_axes(5.6, sharey=True)
    kernels = list(dict.fromkeys(r["kernel"] for r in results))
    colours = {kernel: _COLOURS[i % len(_COLOURS)] for i, kernel in enumerate(kernels)}
    for kernel, method in dict.fromkeys((r["kernel"], r["map"]) for r in results):
        rows = sorted(
            (r for r in results if (r["kernel"], r["map"]) == (kernel, method)), key=lambda r: r["n_components"]
        )
        errors = [r["error"] for r in rows]
        style = {
            "color": colours[kernel],
            "marker": _MARKERS.get(method, "o"),
            "linestyle": _DASHES.get(method, "-"),
            "markersize": 11 if method == "exact" else 6,
            "markeredgecolor": "white",
            "markeredgewidth": 0.6,
            "linewidth": 1.4,
        }
        time.plot([r["fit_seconds"] for r in rows], errors, **style)
        if method in _LEVELS:
            size.axhline(errors[0], color=colours[kernel], linewidth=1.2, linestyle=_LEVELS[method])
        else:
            size.plot([r["n_components"] for r in rows], errors, **style)
    _finish(time, size, results, label)
    _legends(figure, colours, list(dict.fromkeys(r["map"] for r in results)))
    return figure


def _finish(time: Any, size: Any, results: Sequence[dict[str, Any]], label: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    errors = [r["error"] for r in results if r["error"] > 0]
    for ax, text in ((time, "fit time in seconds"), (size, "number of features")):
        ax.set_xscale("log")
        ax.set_xlabel(text)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        if errors and len(errors) == len(results):
            ax.set_yscale("log")
        ax.grid(True, which="major", color="#e8e8ea", linewidth=0.8)
        ax.set_axisbelow(True)
        wide = errors and max(errors) > 8 * min(errors)
        if ax.get_yscale() == "log" and wide:
            ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter() if wide else FuncFormatter(lambda y, _: f"{y:.3g}"))
    ticks = sorted({r["n_components"] for r in results if r["map"] not in _LEVELS})
    size.set_xticks(ticks, [str(t) for t in ticks])
    size.set_xlim(ticks[0] / 1.3, ticks[-1] * 1.3)
    size.xaxis.set_minor_formatter(NullFormatter())
    time.set_ylabel(label)


def _legends(figure: Any, colours: dict[str, str], methods: Sequence[str]) -> None:
    """Add a legend below the axes: colours for kernels, markers for maps."""
    from matplotlib.lines import Line2D

    names = {"": "original columns", "exact": "exact kernel, no features"}
    handles = [Line2D([], [], color=colour, linewidth=4, label=kernel) for kernel, colour in colours.items()]
    shared: dict[tuple[str, Any], list[str]] = {}
    for method in methods:
        dashes = _LEVELS.get(method, _DASHES.get(method, "-"))
        shared.setdefault((_MARKERS.get(method, "o"), dashes), []).append(names.get(method, method))
    handles += [
        Line2D([], [], color="#444", marker=marker, linestyle=dashes, label=" / ".join(labels))
        for (marker, dashes), labels in shared.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)


def _page(report: dict[str, Any], picture: bytes) -> str:
    """Return an HTML page that loads nothing from elsewhere."""
    best = min(report["results"], key=lambda r: r["error"])
    header = ("kernel", "map", "features", report["error_label"], "fit, seconds", "predict, seconds", "alpha")
    keys = ("kernel", "map", "n_components", "error", "fit_seconds", "predict_seconds", "alpha")
    head = "".join(f"<th{' class=text' if i < 2 else ''}>{html.escape(name)}</th>" for i, name in enumerate(header))
    body = []
    for row in report["results"]:
        cells = [f"{row[key]:.3f}" if key.endswith("seconds") else number(row[key]) for key in keys]
        if row["error_std"] is not None:
            cells[3] += f" ± {number(row['error_std'], 2)}"
        line = "".join(f"<td{' class=text' if i < 2 else ''}>{html.escape(cell)}</td>" for i, cell in enumerate(cells))
        body.append(f"<tr{' class=best' if row is best else ''}>{line}</tr>")
    facts = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(number(value))}</dd>" for name, value in report["facts"].items()
    )
    packages = ", ".join(f"{name} {text}" for name, text in report["versions"].items())
    title = f"Feature maps compared on {report['data']}"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{_generator()}
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{html.escape(title)}</h1>
<p>Smallest error: <strong>{html.escape(best["kernel"])}</strong>{html.escape(_map_and_size(best))},
{html.escape(report["error_label"])} {number(best["error"])}, fitted in {number(best["fit_seconds"], 2)} s.</p>
<h2>Data</h2>
<dl>{facts}</dl>
{_image(picture)}
<h2>All results</h2>
<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>
{chr(10).join(body)}
</tbody></table></div>
<footer><p>Ridge {html.escape(report["task"])} on standardized columns. Alpha is chosen on the training rows. All errors
are on the same held-out rows. Fit time includes features, alpha and weights. The smallest of many errors on the same
rows is too optimistic: test the chosen method on other rows.</p>
<p><code>{html.escape(report["command_line"])}</code></p>
<p>{html.escape(packages)}</p></footer>
</body>
</html>
"""


def _image(picture: bytes) -> str:
    if not picture:
        return ""
    return f"""<h2>Error against time and size</h2>
<img alt="Test error of all maps against fit time and against the number of features"
 src="data:image/png;base64,{b64encode(picture).decode()}">"""


def _map_and_size(row: dict[str, Any]) -> str:
    return f" ({row['map']}, {row['n_components']} features)" if row["map"] not in ("", "exact") else f" {row['map']}"
