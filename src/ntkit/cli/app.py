"""The commands and their options. The work is done in ``ntkit.cli.commands``."""

# ruff: noqa: ARG001 (commands pass all options to `_run` through locals())
# ruff: noqa: D301 (click does not refill paragraphs that begin with \b, a backspace)

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
TaskOption = Annotated[Task, typer.Option(help="Kind of prediction; auto decides by the target.")]
Test = Annotated[
    float, typer.Option(metavar="FRACTION", help="Fraction of rows held out for the test; 0 skips the test.")
]
Drop = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="Column to leave out; may be repeated.", show_default=False)
]
DropMissing = Annotated[bool, typer.Option("--drop-missing-target", help="Leave out rows whose target is missing.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace output files that exist.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only: no report, notes or progress.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


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
    """Kernel methods for tables: neural tangent kernels and related kernels, with explicit features.

    \b
    Examples:
      ntkit fit train.csv --target price --output price.ntkit
      ntkit predict price.ntkit new.csv --output predictions.csv
      ntkit demo
    """


@app.command(short_help="Fit a model that predicts a column of a table.")
def fit(
    data: Data,
    target: Target,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="MODEL", help="File for the model.", show_default=False)
    ],
    task: TaskOption = Task.auto,
    time_budget: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, help="Time for the search. The final fit takes extra time."),
    ] = 60.0,
    components: Annotated[int, typer.Option(min=1, help="Maximum number of features of a model.")] = 8192,
    test: Test = 0.2,
    drop: Drop = None,
    drop_missing_target: DropMissing = False,
    seed: Seed = 0,
    kernel: Annotated[Kernel, typer.Option(help="Kernels to try.")] = Kernel.auto,
    depth: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Depth of the NTK. Default: chosen by the search.", show_default=False),
    ] = None,
    lengthscale: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            help="Length scale of the Gaussian kernel on standardized columns. Default: chosen by the search.",
            show_default=False,
        ),
    ] = None,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Save what 'predict --std' needs: about 4 · features² more bytes.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="PNG file for a plot of the column importances.", show_default=False),
    ] = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fit a model that predicts a column of a table from the other columns, and save it.

    The search tries several kernels and chooses the kernel, the number of features and the penalty. The chosen model
    is tested on held-out rows that the search has not seen, compared with scikit-learn's HistGradientBoosting, and
    then fitted again on all rows.

    Numbers are used as they are. Text becomes one column per value. Dates become trend, season, weekday and time of
    day. Values may be missing.

    \b
    Examples:
      ntkit fit houses.csv --target price --output price.ntkit
      ntkit fit digits.npz -t y -o digits.ntkit --task classification --components 8192
      ntkit fit log.parquet -t load -o load.ntkit --drop id --kernel ntk --depth 2 --json
    """
    _require(0 <= test < 1, f"--test must be at least 0 and less than 1. Got {test:g}.")
    _require(depth is None or kernel in ("auto", "ntk"), f"--depth applies to --kernel ntk, not to {kernel}.")
    if lengthscale is not None:
        _require(kernel in ("auto", "gaussian"), f"--lengthscale applies to --kernel gaussian, not to {kernel}.")
        _require(0 < lengthscale < float("inf"), f"--lengthscale must be positive. Got {lengthscale:g}.")
    if plot is not None:
        _require(plot.suffix.lower() == ".png", f"--plot must end in .png. Got '{plot}'.")
    _check_outputs([output, *([plot] if plot else [])], [data], force)
    _run("fit", progress=_progress(json, quiet), **locals())


@app.command(short_help="Predict each row of a table with a saved model.")
def predict(
    model: Model,
    data: Data,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="CSV, TSV or Parquet file to write; - is standard output."),
    ] = Path("-"),
    proba: Annotated[bool, typer.Option("--proba", help="Add one column per class with its probability.")] = False,
    std: Annotated[
        bool, typer.Option("--std", help="Add standard deviations. Needs a model fitted with --statistics.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", "-k", help="Copy the columns of the table in front of the predictions.")
    ] = False,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Predict each row of a table with a saved model.

    The output has one row for each row of the table, in the same order. Columns are matched by name, and columns that
    the model does not use are ignored. Class labels are written unchanged. If a label such as =SUM(A1) could run as a
    formula in a spreadsheet, a note says so: import the file as text.

    \b
    Examples:
      ntkit predict price.ntkit new.csv --output predictions.csv
      ntkit predict digits.ntkit new.npz --output predictions.parquet --proba
      cat new.csv | ntkit predict price.ntkit - --keep > predictions.csv
    """
    if output == Path("-"):
        _require(not json, "--json and the predictions cannot both go to standard output. Give a file with --output.")
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
    """Test a saved model on a table that has the target, and compare it with the best constant prediction.

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
    components: Annotated[str, typer.Option(metavar="N,N,…", help="Numbers of features to try.")] = "256,1024,4096",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Folder for a plot and a web page.", show_default=False),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Random draws of each map; errors are averaged over them.")] = 1,
    max_exact: Annotated[
        int, typer.Option(min=0, help="Skip exact kernels above this number of training rows.")
    ] = 5000,
    task: TaskOption = Task.auto,
    test: Annotated[float, typer.Option(metavar="FRACTION", help="Fraction of rows held out for the test.")] = 0.2,
    drop: Drop = None,
    drop_missing_target: DropMissing = False,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compare feature maps, exact kernels and gradient-boosted trees on a table: error, time and size.

    With --output, also write a plot and an HTML page. Those of an earlier comparison are replaced; other files with
    the same names are replaced only with --force.

    \b
    Examples:
      ntkit compare houses.csv --target price
      ntkit compare houses.csv -t price --components 512,2048 --seeds 3 --output comparison
    """
    _require(0 < test < 1, f"--test must be greater than 0 and less than 1. Got {test:g}.")
    options = {**locals(), "components": _sizes(components)}
    del options["context"]
    if output is not None:
        _check_plots("compare", output, [data], force)
    _run("compare", progress=_progress(json, quiet), command_line=shlex.join(["ntkit", *context.obj]), **options)


@app.command(short_help="Compare the exact kernel with features.")
def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder for the plots; created if missing.")
    ] = Path("demo"),
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compare the exact neural tangent kernel with features of it, on growing data and on handwritten digits.

    It takes less than a minute on two cores. In the end the kernel matrix no longer fits into memory, and the features
    still do. The plots of an earlier demo are replaced; other files with the same names are replaced only with --force.

    \b
    Examples:
      ntkit demo
      ntkit demo --output pictures --json
    """
    _check_plots("demo", output, [], force)
    _run("demo", progress=_progress(json, quiet), **locals())


def _run(command: str, *, json: bool, debug: bool, quiet: bool = False, force: bool = False, **options: Any) -> None:
    """Run a command and print its report. Heavy imports happen here, so that ``--help`` is quick."""
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
    """Print a report. After an error, discard the rest: flushing it at the end of the process would fail again."""
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
    """Refuse outputs that are inputs under any name, and existing files unless `force` or `is_ours` allows them."""
    for output in outputs:
        _require(output != Path("-"), "Only 'predict' writes to standard output. Give the output a name.")
        for given in inputs:
            same = output.exists() and given.exists() and os.path.samefile(output, given)
            _require(not same, f"The output '{output}' is the input '{given}'. Name another file.")
        known = force or not output.is_file() or (is_ours is not None and is_ours(output))
        _require(known, f"The output '{output}' exists. Use --force to replace it, or name another file.")


def _check_plots(command: str, folder: Path, inputs: Sequence[Path], force: bool) -> None:
    """Check the files that `command` writes to a folder. Files of an earlier run may be replaced."""
    from ntkit.cli.page import FILES, is_ours

    _require(folder != Path("-"), "Only 'predict' writes to standard output. Name a folder.")
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
