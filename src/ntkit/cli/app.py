"""Commands and their options; what they do is in ``commands``."""

# ruff: noqa: ARG001 (all options go on to `_run` as they are)
# ruff: noqa: D301 (click wants \b, a real backspace, before paragraphs that it must not fill)

from __future__ import annotations

import os
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ntkit import __version__

app = typer.Typer(
    name="ntkit",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Task = StrEnum("Task", ["auto", "regression", "classification"])
Kernel = StrEnum("Kernel", ["auto", "ntk", "gaussian", "linear"])

Data = Annotated[
    Path,
    typer.Argument(
        metavar="DATA", help="CSV, TSV, Parquet or NPZ file; - is standard input.", show_default=False, allow_dash=True
    ),
]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="File written by 'ntkit fit'.", show_default=False)]
Target = Annotated[str, typer.Option("--target", "-t", metavar="COLUMN", help="Column to predict.", show_default=False)]
TaskOption = Annotated[Task, typer.Option(help="What to learn; auto looks at the target.")]
Test = Annotated[float, typer.Option(metavar="FRACTION", help="Part of the rows held out to test on; 0: none.")]
Drop = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="Column to leave out; may be repeated.", show_default=False)
]
DropMissing = Annotated[bool, typer.Option("--drop-missing-target", help="Leave out rows without a target.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace the output if it exists.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error came from.")]


def _version(value: bool) -> None:
    if value:
        print(f"ntkit {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Kernel methods on tables: neural tangent kernels and their relatives, by explicit features.

    \b
    Examples:
      ntkit fit train.csv --target price --output price.ntkit
      ntkit predict price.ntkit new.csv --output predictions.csv
      ntkit demo
    """


@app.command(short_help="Learn to predict a column of a table.")
def fit(
    data: Data,
    target: Target,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="MODEL", help="File for the model.", show_default=False)
    ],
    task: TaskOption = Task.auto,
    time_budget: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, help="Time for the search; the last fit, on all rows, comes on top."),
    ] = 60.0,
    components: Annotated[int, typer.Option(min=1, help="Most features of a model.")] = 8192,
    test: Test = 0.2,
    drop: Drop = None,
    drop_missing_target: DropMissing = False,
    seed: Seed = 0,
    kernel: Annotated[Kernel, typer.Option(help="Kernels to search.")] = Kernel.auto,
    depth: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Depth of the NTK instead of a search.", show_default=False)
    ] = None,
    lengthscale: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            help="Length scale of the Gaussian kernel, of standardized columns, instead of a search.",
            show_default=False,
        ),
    ] = None,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Save what 'predict --std' needs too: 8 components² bytes.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="PNG file for a plot of the columns that matter.", show_default=False),
    ] = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Learn to predict a column of a table; find the kernel, which columns matter, the size and the penalty.

    Numbers are used as they are, text becomes one column per value, dates become trend, season, weekday and time;
    missing values are allowed. The kernels are compared on held-out rows, the best is tested on rows that the search
    has not seen, beside scikit-learn's HistGradientBoosting, then fitted on all rows.

    \b
    Examples:
      ntkit fit houses.csv --target price --output price.ntkit
      ntkit fit digits.npz -t y -o digits.ntkit --task classification --components 8192
      ntkit fit log.parquet -t load -o load.ntkit --drop id --kernel ntk --depth 2 --json
    """
    _require(0 <= test < 1, f"--test must be 0 or more and less than 1. Got {test:g}.")
    _require(depth is None or kernel in ("auto", "ntk"), f"--depth is for --kernel ntk, not {kernel}.")
    if lengthscale is not None:
        _require(kernel in ("auto", "gaussian"), f"--lengthscale is for --kernel gaussian, not {kernel}.")
        _require(0 < lengthscale < float("inf"), f"--lengthscale must be positive. Got {lengthscale:g}.")
    _check_outputs([output, *([plot] if plot else [])], [data], force)
    _run("fit", progress=_progress(json, quiet), **locals())


@app.command(short_help="Predict the rows of a table.")
def predict(
    model: Model,
    data: Data,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="CSV, TSV or Parquet file to write; - is standard output."),
    ] = Path("-"),
    proba: Annotated[bool, typer.Option("--proba", help="Write the probabilities of the classes too.")] = False,
    std: Annotated[bool, typer.Option("--std", help="Write standard deviations too (fit with --statistics).")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", "-k", help="Write the columns of the table too, before these.")
    ] = False,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Predict the rows of a table with a saved model; one row of output for each row of the table.

    Columns are found by name; those that the model does not know are ignored. Predictions of classes are written as
    they are, also labels such as =SUM(A1) that a spreadsheet would run (a note says so): import the file as text there.

    \b
    Examples:
      ntkit predict price.ntkit new.csv --output predictions.csv
      ntkit predict digits.ntkit new.npz --output predictions.parquet --proba
      cat new.csv | ntkit predict price.ntkit - --keep > predictions.csv
    """
    if output == Path("-"):
        _require(not json, "--json prints to standard output, and so would the predictions. Name a file: --output.")
    else:
        _check_ending(output)
        _check_outputs([output], [model, data], force)
    _run("predict", **locals())


@app.command(short_help="Test a saved model on a table.")
def evaluate(
    model: Model,
    data: Data,
    target: Target,
    drop_missing_target: DropMissing = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Test a saved model on a table, beside the best constant prediction.

    \b
    Examples:
      ntkit evaluate price.ntkit test.csv --target price
      ntkit evaluate digits.ntkit digits.npz --target y_test --json
    """
    _run("evaluate", **locals())


@app.command(short_help="Compare feature maps on a table.")
def compare(
    context: typer.Context,
    data: Data,
    target: Target,
    components: Annotated[str, typer.Option(metavar="N,N,…", help="Numbers of features.")] = "256,1024,4096",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Folder for a plot and a page.", show_default=False),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Draws of each map; errors are averaged.")] = 1,
    max_exact: Annotated[int, typer.Option(min=0, help="Most training rows for exact kernels.")] = 5000,
    task: TaskOption = Task.auto,
    test: Annotated[float, typer.Option(metavar="FRACTION", help="Part of the rows held out to test on.")] = 0.2,
    drop: Drop = None,
    drop_missing_target: DropMissing = False,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compare feature maps, and exact kernels where the rows are few enough: error, time and size.

    A plot and a page of an earlier comparison are replaced; other files of their names only with --force.

    \b
    Examples:
      ntkit compare houses.csv --target price
      ntkit compare houses.csv -t price --components 512,2048 --seeds 3 --output comparison
    """
    _require(0 < test < 1, f"--test must be more than 0 and less than 1. Got {test:g}.")
    options = {**locals(), "components": _sizes(components)}
    del options["context"]
    if output is not None:
        _check_plots("compare", output, [data], force)
    _run("compare", progress=_progress(json, quiet), command_line=shlex.join(["ntkit", *context.obj]), **options)


@app.command(short_help="Handwritten digits in seconds.")
def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder for the plot; made if missing.")
    ] = Path("demo"),
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Classify handwritten digits: linear, Gaussian and NTK features, and the exact NTK. Takes seconds.

    The plot of an earlier demo is replaced; another file of its name only with --force.

    \b
    Examples:
      ntkit demo
      ntkit demo --output pictures --json
    """
    _check_plots("demo", output, [], force)
    _run("demo", progress=_progress(json, quiet), **locals())


def _run(command: str, *, json: bool, debug: bool, quiet: bool = False, force: bool = False, **options: Any) -> None:
    """Run a command with its options and print its report; heavy imports happen here, so that help is quick."""
    from ntkit.cli import commands, texts
    from ntkit.cli.progress import announcing

    with warnings.catch_warnings(), announcing(_progress(json, quiet)):
        if quiet:
            warnings.simplefilter("ignore")
        report = getattr(commands, command)(**options)
    if json:
        _print(texts.to_json(report))
    elif not quiet and (text := getattr(texts, command)(report)):
        _print(text)


def _print(text: str) -> None:
    """Print a report; an error leaves nothing to print at the end of the process, which would fail once more."""
    try:
        print(text, flush=True)
    except OSError as error:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OSError(error.errno, f"The report cannot be printed: {error.strerror}") from error


def _progress(json: bool, quiet: bool) -> bool:
    return not json and not quiet and sys.stderr.isatty()


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise typer.BadParameter(text)


def _check_outputs(
    outputs: Sequence[Path], inputs: Sequence[Path], force: bool, is_ours: Callable[[Path], bool] | None = None
) -> None:
    """Refuse to replace an input, by whatever name, and without --force other files that the command has not made."""
    for output in outputs:
        for given in inputs:
            same = output.exists() and given.exists() and os.path.samefile(output, given)
            _require(not same, f"The output '{output}' is the input '{given}', which must stay. Name another file.")
        known = force or not output.is_file() or (is_ours is not None and is_ours(output))
        _require(known, f"The output '{output}' exists. Say --force to replace it, or name another.")


def _check_plots(command: str, folder: Path, inputs: Sequence[Path], force: bool) -> None:
    """The same for the files of a folder; files that the command has written before are replaced."""
    from ntkit.cli.page import FILES, is_ours

    _check_outputs([folder / name for name in FILES[command]], inputs, force, is_ours)


def _check_ending(output: Path) -> None:
    from ntkit.tables import FRAME_ENDINGS

    endings = ", ".join(FRAME_ENDINGS)
    _require(output.name.lower().endswith(FRAME_ENDINGS), f"--output must end in {endings}. Got '{output}'.")


def _sizes(text: str) -> list[int]:
    parts = text.split(",")
    good = all(part.strip().isdecimal() and int(part) > 0 for part in parts)
    _require(good, f"--components must be positive whole numbers separated by commas. Got '{text}'.")
    return sorted(set(map(int, parts)))
