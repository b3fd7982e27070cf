"""Trials in forked processes, which may hang, die or eat memory without harm to the test run."""

from __future__ import annotations

import gc
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from tests.hostile.verdicts import Verdict

from ntkit import FeatureRidge, KernelRidge, NTKFeatures, load, save

Job = TypeVar("Job")
Outcome = tuple[Verdict, str]
CAN_FORK = hasattr(os, "fork")


def forked(work: Callable[[], Any]) -> int:
    """The id of a child that does some work and exits with 0, or with 1 after an exception."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def exit_code(child: int) -> int:
    """Wait for a child; minus the number of the signal that killed it, if one did."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill(child: int) -> int:
    """Kill a child that may have ended."""
    os.kill(child, signal.SIGKILL)  # it is not waited for yet, so the id is still its own
    return exit_code(child)


def exit_code_within(child: int, seconds: float) -> int:
    """Wait for a child, and kill it after some time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            break
        time.sleep(0.01)
    return kill(child)


def outcomes(
    judge: Callable[[Job], Outcome], jobs: Iterable[Job], *, seconds: float
) -> Iterator[tuple[Job, Verdict, str]]:
    """Verdicts of `judge` on jobs, in a child; after a job that kills it or takes too long, another child goes on."""
    waiting = list(jobs)
    while waiting:
        receive, send = Pipe(duplex=False)

        def work(send: Any = send, jobs: tuple[Job, ...] = tuple(waiting)) -> None:
            for job in jobs:
                send.send(judge(job))

        gc.collect()
        child = forked(work)
        send.close()
        try:
            while waiting:
                if not receive.poll(seconds):
                    yield waiting.pop(0), Verdict.UNBOUNDED, f"more than {seconds} s"
                    break
                try:
                    verdict, detail = receive.recv()
                except EOFError:
                    yield waiting.pop(0), Verdict.CRASH, "the process died"
                    break
                yield waiting.pop(0), verdict, detail
        finally:
            kill(child)
            receive.close()


class Meter:
    """Processor time and memory of this process since it was made."""

    def __init__(self) -> None:
        self._can_measure = Path("/proc/self/clear_refs").exists()
        if self._can_measure:
            Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from now on
        self._memory, self._begin = self._read("VmRSS"), time.process_time()

    def _read(self, name: str) -> int:
        if not self._can_measure:
            return 0
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])

    @property
    def peak(self) -> int:
        """Bytes in addition to those at the beginning."""
        return self._read("VmHWM") - self._memory

    @property
    def resident(self) -> int:
        """Bytes held now."""
        return self._read("VmRSS")

    @property
    def seconds(self) -> float:
        """Of processors: other programs do not count."""
        return time.process_time() - self._begin


def fit_and_save(path: Path, seed: int = 0) -> list[float]:
    """Use compiled code, threads of BLAS and of ntkit, and files; return predictions."""
    X = np.random.default_rng(seed).standard_normal((3000, 4))
    y = np.abs(X[:, 0]) + X[:, 1]
    model = FeatureRidge(NTKFeatures(n_components=128, random_state=0), random_state=0).fit(X, y)
    save(model, path)
    exact = KernelRidge("ntk", alphas=1.0, depth=1).fit(X[:200], y[:200])
    return [*load(path).predict(X[:5]).tolist(), *exact.predict(X[:5]).tolist()]
