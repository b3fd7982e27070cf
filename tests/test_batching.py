from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numba
import numpy as np
import pytest
import sklearn
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from ntkit._batching import row_batches, run_on_threads, working_memory


def blas_threads():
    return {lib["filepath"]: lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}


@given(st.integers(0, 300), st.integers(1, 10**9), st.none() | st.integers(1, 400))
def test_batches_cover_all_rows_in_order(n_rows, bytes_per_row, batch_size):
    parts = [np.arange(n_rows)[s] for s in row_batches(n_rows, bytes_per_row, batch_size=batch_size)]
    assert np.array_equal(np.concatenate([np.arange(0), *parts]), np.arange(n_rows))
    assert all(len(p) > 0 for p in parts)


def test_budget_is_scikit_learns():
    with sklearn.config_context(working_memory=1):
        assert working_memory() == 2**20
        assert {s.stop - s.start for s in row_batches(100, 2**20 // 4)} == {4}
        assert {s.stop - s.start for s in row_batches(3, 2**40)} == {1}


@pytest.mark.parametrize(("size", "error"), [(0, ValueError), (-3, ValueError), (1.5, TypeError)])
def test_bad_batch_size(size, error):
    with pytest.raises(error, match="'batch_size' parameter of row_batches must be an int ≥ 1"):
        list(row_batches(10, 8, batch_size=size))


def test_threads_do_every_task_with_blas_held_to_one_thread(monkeypatch):
    seen, lock = [], threading.Lock()

    def work(i):
        n_threads = blas_threads()
        with lock:
            seen.append((i, max(n_threads.values())))

    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 2)
    before = blas_threads()
    run_on_threads(work, range(20))
    assert sorted(i for i, _ in seen) == list(range(20))
    assert {n for _, n in seen} == {1}
    assert blas_threads() == before


def test_threads_pass_errors_on():
    def work(i):
        if i == 7:
            raise RuntimeError("seven")

    with pytest.raises(RuntimeError, match="seven"):
        run_on_threads(work, range(10))


@pytest.mark.parametrize("last_in_first_out", [True, False])
def test_overlapping_callers_leave_blas_threads_unchanged(last_in_first_out, monkeypatch):
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 2)
    before = blas_threads()
    callers = []
    for _ in range(2):
        inside, leave = threading.Event(), threading.Event()

        def work(_, inside=inside, leave=leave):
            inside.set()
            assert leave.wait(60)

        thread = threading.Thread(target=run_on_threads, args=(work, range(2)), daemon=True)
        thread.start()
        assert inside.wait(60)
        callers.append((thread, leave))
    for thread, leave in reversed(callers) if last_in_first_out else callers:
        leave.set()
        thread.join(60)
    assert blas_threads() == before


def test_after_an_error_no_new_task_begins(monkeypatch):
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 2)
    begun = []

    def work(i):
        begun.append(i)
        if i == 0:
            raise RuntimeError("zero")
        time.sleep(0.01)

    with pytest.raises(RuntimeError, match="zero"):
        run_on_threads(work, range(1000))
    assert len(begun) < 500


def test_progress_bar_counts_the_tasks(capsys):
    run_on_threads(lambda _: None, range(7), progress="tiles")
    assert "tiles" in (text := capsys.readouterr().err)
    assert "7/7" in text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_its_own_threads():
    code = """
import os
import numba
from ntkit._batching import run_on_threads
numba.config.NUMBA_NUM_THREADS = 2
done = []
run_on_threads(done.append, range(4))
child = os.fork()
if child == 0:
    run_on_threads(done.append, range(4))
    os._exit(0 if len(done) == 8 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert out.stdout.strip() == "0", out.stderr


def test_most_bounds_the_threads(monkeypatch):
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 2)
    threads = set()
    run_on_threads(lambda _: threads.add(threading.get_ident()), range(20), most=1)
    assert threads == {threading.get_ident()}
