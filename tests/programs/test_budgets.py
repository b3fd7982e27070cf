"""Memory in addition to inputs and result stays within the budget, scikit-learn's ``working_memory``, on every back
end.

Python and NumPy report to tracemalloc. It does not see the workspace of BLAS and Fourier transforms, nor tensors. A
program is run on a few rows first, so that compiled code, plans and draws exist. Tensors that require gradients are
exempt: torch keeps all intermediate results for the backward pass.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn import config_context
from tests.conftest import as_numpy
from tests.programs.generators import program_of, random_matrix
from tests.tiers import gpu, sampled

from ntkit.programs import Program, analysis, array_api, run
from ntkit.sketches import SRHT, PolySketch, TensorSketch
from ntkit.sketches.series import SeriesSketch

MIB = 2**20
OVERHEAD = 2 * MIB  # slices, lists of tasks, instructions
SMALL_ROWS = 40  # of the first run


def layers() -> Program:
    """Three dense layers of width 1024; a few columns of the last."""
    rng = np.random.default_rng(0)
    program = Program((256,))
    h = program.normalize(program.load())
    for _ in range(3):
        h = program.activate(program.dense(h, random_matrix(rng, 1024, program.size(h))), "relu")
    program.output(program.slice(h, 0, 16))
    return program


def series() -> Program:
    return program_of(SeriesSketch(500, (0.1,) * 20, 1000, sparse=True).sample(0))


PROGRAMS: dict[str, tuple[Callable[[], Program], int]] = {
    "degree 64": (lambda: program_of(PolySketch(64, 512, degree=64).sample(0)), 3000),
    "dense layers": (layers, 6000),
    "convolutions": (lambda: program_of(TensorSketch(64, 2048, degree=3).sample(0)), 3000),
    "many columns": (lambda: program_of(SRHT(200, 5000).sample(0)), 3000),
    "few columns": (lambda: program_of(SRHT(2000, 8).sample(0)), 8000),
    "large scratch": (lambda: program_of(SRHT(2**16, 50).sample(0)), 200),
    "normalized series": (series, 2000),
}


@cache
def known(name: str) -> tuple[Program, np.ndarray]:
    """A program and float32 rows for it, of norms about 1."""
    make, n = PROGRAMS[name]
    program = make()
    (d,) = program.n_features
    return program, np.random.default_rng(1).standard_normal((n, d), dtype=np.float32) / np.float32(d**0.5)


def sparse_rows(X: np.ndarray, density: float = 0.1) -> sp.csr_array:
    return sp.csr_array(np.where(np.random.default_rng(2).random(X.shape) < density, X, 0))


def strict(X: np.ndarray) -> Any:
    import array_api_strict

    return array_api_strict.asarray(X[:2000])


FORMATS: dict[str, Callable[[np.ndarray], Any]] = {
    "float32": lambda X: X,
    "float64": lambda X: X.astype(np.float64),
    "float16": lambda X: X.astype(np.float16),
    "int32": lambda X: np.sign(X).astype(np.int32),
    "fortran": np.asfortranarray,
    "reversed": lambda X: X[:, ::-1],
    "torch": torch.from_numpy,
    "csr": sparse_rows,
    "full csr": sp.csr_array,
    "strict": strict,
}


def bytes_beside(program: Program, X: Any) -> int:
    """Return the peak bytes in addition to the inputs and the result, without the first run."""
    run(program, [X[:SMALL_ROWS, :]])
    gc.collect()
    tracemalloc.start()
    try:
        out = run(program, [X])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return most - as_numpy(out).nbytes


def check_budget(name: str, form: str, mib: int, overhead: int = OVERHEAD) -> None:
    program, X = known(name)
    with config_context(working_memory=mib):
        most = bytes_beside(program, FORMATS[form](X))
    assert most <= mib * MIB + overhead, f"{most / MIB:.1f} MiB besides inputs and result; the limit is {mib} MiB"


CASES = [
    *(("degree 64", form, 16) for form in ("float32", "fortran", "int32", "csr", "strict")),
    *(("dense layers", form, mib) for form in ("float32", "reversed") for mib in (16, 64)),
    ("dense layers", "csr", 16),
    *(("convolutions", form, mib) for form in ("float32", "csr", "int32") for mib in (16, 64)),
    *(("many columns", form, 16) for form in ("float32", "float64", "fortran", "csr")),
    ("many columns", "float16", 16),
    ("many columns", "strict", 16),
    *(("few columns", form, mib) for form in ("fortran", "int32", "float16", "torch") for mib in (16, 64)),
    ("few columns", "csr", 16),
    ("few columns", "full csr", 16),
    ("few columns", "full csr", 64),
    *(("large scratch", form, mib) for form in ("float32", "int32", "csr") for mib in (16, 64)),
    *(("normalized series", form, 16) for form in ("float32", "csr", "reversed")),
]


@pytest.mark.parametrize(("name", "form", "mib"), sampled(CASES, 10))
def test_host_memory_stays_within_the_budget(monkeypatch, name, form, mib):
    """Four threads share it."""
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 4)
    check_budget(name, form, mib)


def test_one_group_of_rows_is_the_least(monkeypatch):
    """Scratch of 4 MiB and W rows at a time for any budget, and no more."""
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 4)
    group = 4 * MIB + 16 * 2**16 * 4  # vectors of 64 bytes, one for each feature; 16 rows of float32
    check_budget("large scratch", "int32", 1, overhead=2 * group)


@pytest.mark.parametrize("name", ["degree 64", "convolutions", "few columns"])
def test_batches_bound_the_legible_back_end(name):
    """Intermediate results of `batch_size` rows, by the count of :func:`array_api.workspace`, and the result itself."""
    program, X = known(name)
    X = strict(X[:800])
    per_row = 4 * analysis.peak_live(program, lambda index: array_api.workspace(program, index))
    run(program, [X[:SMALL_ROWS, :]])
    gc.collect()
    for batch_size in (100, 400):
        tracemalloc.start()
        out = run(program, [X], batch_size=batch_size)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        size = np.asarray(out).nbytes
        assert most <= size + batch_size * per_row + OVERHEAD  # draws are converted for each step


def test_the_checks_reject_a_budget_that_is_ignored(monkeypatch):
    from ntkit.programs.host import stages as plans

    monkeypatch.setattr(plans, "working_memory", lambda: 512 * MIB)
    with pytest.raises(AssertionError, match="the limit is"):
        check_budget("dense layers", "float32", 16)
    with pytest.raises(AssertionError, match="the limit is"):
        check_budget("convolutions", "float32", 16)
    monkeypatch.setattr("ntkit._batching.working_memory", lambda _: 512 * MIB)
    with pytest.raises(AssertionError, match="the limit is"):
        check_budget("degree 64", "strict", 16)


@gpu
@pytest.mark.parametrize("name", ["degree 64", "dense layers", "normalized series"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cuda_memory_stays_within_the_budget(monkeypatch, name, dtype):
    """Of 16 MiB, and of batches; blocks of torch are multiples of 512 bytes."""
    from ntkit.programs.cuda import runner

    program, X = known(name)
    X = torch.from_numpy(X).to("cuda", dtype).repeat(4, 1)
    run(program, [X[:SMALL_ROWS]])

    def most_beside(**how: Any) -> int:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = run(program, [X], **how)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before - out.nbytes

    monkeypatch.setattr(runner, "SMALL_BYTES", 0)
    monkeypatch.setattr("ntkit._batching.working_memory", lambda _=None: 16 * MIB)
    assert most_beside() <= 16 * MIB + OVERHEAD
    assert 0 < most_beside(batch_size=64) < most_beside(batch_size=4096)
