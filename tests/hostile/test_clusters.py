"""Failing Dask clusters: killed workers, no workers, closed clients, cancelled data, too little memory, bad rows.

A dead worker costs only time: the result equals a local fit. A job that cannot continue ends soon, with an ntkit error.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tests.hostile.verdicts import Tally, Verdict
from tests.tiers import SEED, sampled, scaled, thorough

from ntkit import (
    FeatureKMeans,
    FeatureRidge,
    FeatureRidgeClassifier,
    FeatureRidgeSearch,
    GramRidge,
    KernelRidge,
    KernelRidgeClassifier,
    NTKFeatures,
    distributed,
)

pytest.importorskip("distributed", reason="needs Dask")

import dask
import dask.array as da
from distributed import Client
from tests.clusters import local_cluster

# A worker that is killed leaves sockets for the garbage collector: no business of ours.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

N = 400
CHUNK = 50
MOST_SECONDS = 180.0  # a trial that takes longer hangs
BLOCK_SECONDS = 0.2  # that a block of rows takes to load, so that workers can be killed in the meantime


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Client of two processes, which come back after they were killed."""
    with local_cluster(2) as client:
        yield client


@pytest.fixture(autouse=True)
def few_rows_per_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of one block, as there are few rows."""
    monkeypatch.setattr(distributed, "_FEWEST_ROWS", CHUNK)


def problem() -> tuple[np.ndarray, np.ndarray]:
    """Rows and targets."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 4))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]


def blocks_of(values: np.ndarray) -> Any:
    """A Dask array whose blocks take time to load."""
    slowly = lambda rows: time.sleep(BLOCK_SECONDS) or rows  # noqa: E731  (sent whole: workers lack this module)
    return da.from_array(values, chunks=(CHUNK, *values.shape[1:])).map_blocks(slowly, meta=values[:0])


def kernel_ridge(solver: str, share: float = 0.5) -> Callable[[bool], np.ndarray]:
    """Fit and predictions of an exact model."""

    def job(on_dask: bool) -> np.ndarray:
        X, y = problem()
        params = {"pcg": {"features": None, "tolerance": 1e-9}, "gradient": {"tolerance": 1e-8}}.get(solver)
        alpha = 3.0 if solver == "gradient" else 0.3  # some 40 iterations
        model = KernelRidge(
            "gaussian", lengthscale=1.0, alphas=alpha, solver=solver, solver_params=params, random_state=0
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(distributed, "_SHARE", share)
            model.fit(blocks_of(X) if on_dask else X, y)
        return np.asarray(model.predict(X))

    return job


def kernel_classifier(on_dask: bool) -> np.ndarray:
    """Fit and scores of an exact classifier."""
    X, y = problem()
    params = {"features": None, "tolerance": 1e-9}
    model = KernelRidgeClassifier(
        "gaussian", lengthscale=1.0, alphas=0.3, solver="pcg", solver_params=params, random_state=0
    )
    model.fit(blocks_of(X) if on_dask else X, y > 0)
    return np.asarray(model.decision_function(blocks_of(X) if on_dask else X))


def feature_ridge(on_dask: bool) -> np.ndarray:
    """Fit and predict with a model whose scaler needs a separate pass."""
    X, y = problem()
    model = FeatureRidge(
        make_pipeline(StandardScaler(), NTKFeatures(n_components=32, random_state=0)), alphas=1.0, random_state=0
    )
    model.fit(blocks_of(X) if on_dask else X, y)
    return np.asarray(model.predict(blocks_of(X) if on_dask else X))


def persisted(on_dask: bool) -> np.ndarray:
    """Fit of rows that workers hold."""
    X, y = problem()
    rows = blocks_of(X).persist() if on_dask else X
    model = FeatureRidge(NTKFeatures(n_components=32, random_state=0), alphas=1.0, random_state=0).fit(rows, y)
    return np.asarray(model.predict(rows))


def feature_classifier(on_dask: bool) -> np.ndarray:
    """Fit and scores of a classifier."""
    X, y = problem()
    model = FeatureRidgeClassifier(NTKFeatures(n_components=32, random_state=0), alphas=1.0, random_state=0)
    labels = np.digitize(y, [-0.5, 0.5])
    model.fit(blocks_of(X) if on_dask else X, blocks_of(labels) if on_dask else labels)
    return np.asarray(model.decision_function(blocks_of(X) if on_dask else X))


def mapped(on_dask: bool) -> np.ndarray:
    """Return the results of models fitted in memory for rows on a cluster: searches, lazy draws, clusters, features."""
    X, y = problem()
    features = NTKFeatures(n_components=16, random_state=0)
    rows = blocks_of(X) if on_dask else X
    search = FeatureRidgeSearch(n_components=32, time_budget=0.1, random_state=0).fit(X, y)
    gram = GramRidge(NTKFeatures(n_components=16), alphas=1.0, random_state=0).fit(X, y)
    means = FeatureKMeans(features, 3, random_state=0).fit(X)
    found = [search.predict(rows), gram.predict(rows), means.predict(rows), means.transform(rows)]
    found.append(features.fit(X).transform(rows))
    found = dask.compute(*found) if on_dask else found
    return np.column_stack(found)


ITERATIONS: dict[str, Callable[[bool], np.ndarray]] = {
    "KernelRidge, pcg, held": kernel_ridge("pcg"),
    "KernelRidge, pcg, not held": kernel_ridge("pcg", share=0.0),
    "KernelRidge, gradient": kernel_ridge("gradient"),
    "KernelRidgeClassifier": kernel_classifier,
}
ROUNDS: dict[str, Callable[[bool], np.ndarray]] = {
    "KernelRidge, direct": kernel_ridge("direct"),
    "FeatureRidge": feature_ridge,
    "FeatureRidge, persisted": persisted,
    "FeatureRidgeClassifier": feature_classifier,
    "maps": mapped,
}


class Run(threading.Thread):
    """A job on its own thread, with its result or its error."""

    def __init__(self, job: Callable[[], Any]):
        super().__init__(daemon=True)
        self.job, self.value, self.error = job, None, None
        self.seconds = 0.0
        self.start()

    def run(self) -> None:
        """Do the job."""
        began = time.monotonic()
        try:
            self.value = self.job()
        except BaseException as error:
            self.error = error
        self.seconds = time.monotonic() - began

    def judge(self, tally: Tally, trial: str, expected: Callable[[Run], Verdict], limit: float = MOST_SECONDS) -> None:
        """Wait for the end, and judge it."""
        self.join(limit)
        if self.is_alive():
            tally.add(Verdict.UNBOUNDED, trial, f"more than {limit} s")
        else:
            tally.add(expected(self), trial, repr(self.error or self.value)[:400])
            # Errors refer to frames, which hold futures.
            self.error = None


def equals(values: np.ndarray) -> Callable[[Run], Verdict]:
    """Judge by the result that an undisturbed run gives."""

    def judge(run: Run) -> Verdict:
        if run.error is not None:
            return Verdict.FOREIGN
        close = np.allclose(run.value, values, rtol=0, atol=1e-6 * np.abs(values).max())
        return Verdict.RIGHT if close else Verdict.WRONG

    return judge


def refused(kind: type[Exception], *words: str) -> Callable[[Run], Verdict]:
    """Judge by an error of ours."""

    def judge(run: Run) -> Verdict:
        if run.error is None:
            return Verdict.WRONG
        if type(run.error) is not kind:
            return Verdict.FOREIGN
        return Verdict.REFUSED if all(word in str(run.error) for word in words) else Verdict.VAGUE

    return judge


def ready(client: Client) -> dict[str, int]:
    """Process ids of the workers, once all of them run."""
    until = time.monotonic() + MOST_SECONDS
    while time.monotonic() < until:
        time.sleep(0.1)
        alive = {nanny.worker_address: nanny.pid for nanny in client.cluster.workers.values() if nanny.is_alive()}
        if len(alive) == len(client.cluster.workers) and alive.keys() == client.nthreads().keys():
            return alive
    raise TimeoutError("The workers did not come back.")


def at_work(client: Client) -> None:
    """Wait until the client has tasks on the cluster, and a little longer."""
    until = time.monotonic() + MOST_SECONDS
    while time.monotonic() < until and not client.futures:
        time.sleep(0.01)
    time.sleep(0.1)


def kill_during(
    client: Client, name: str, job: Callable[[bool], np.ndarray], moment: Callable[[Run], bool], tally: Tally
) -> bool:
    """Kill a worker at some moment and compare with a local fit; also return whether the job was still running."""
    victims = ready(client)
    run = Run(lambda: job(True))
    in_time = moment(run) and run.is_alive()
    os.kill(victims[min(victims)], signal.SIGKILL)
    run.judge(tally, name, equals(job(False)))
    return in_time


@pytest.mark.parametrize("name", sampled(list(ITERATIONS), 1))
def test_workers_are_killed_between_products(
    name: str, client: Client, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the rows are loaded, sent, multiplied for the first time, or later; at any moment of that product."""
    rng = np.random.default_rng(SEED)
    products: list[float] = []
    times = distributed.ClusterMatrix._times

    def counted(self: Any, V: Any) -> Any:
        products.append(time.monotonic())
        return times(self, V)

    monkeypatch.setattr(distributed.ClusterMatrix, "_times", counted)
    in_time = 0
    for trial in range(scaled(1, 6)):
        products.clear()
        at, delay = int(rng.integers(1, 25)) if trial else 5, rng.uniform(0, 0.05)

        def moment(run: Run, at: int = at, delay: float = delay) -> bool:
            until = time.monotonic() + MOST_SECONDS
            while run.is_alive() and len(products) < at and time.monotonic() < until:
                time.sleep(0.001)
            time.sleep(delay)
            return True

        in_time += kill_during(client, f"{name}, killed in product {at}", ITERATIONS[name], moment, tally)
    assert in_time >= scaled(1, 5)


@thorough
@pytest.mark.parametrize("name", ROUNDS)
def test_workers_are_killed_in_a_round(name: str, client: Client, tally: Tally) -> None:
    """At a random moment of the time that an undisturbed run takes."""
    rng = np.random.default_rng(SEED)
    ready(client)
    undisturbed = Run(lambda: ROUNDS[name](True))
    undisturbed.judge(tally, f"{name}, undisturbed", equals(ROUNDS[name](False)))
    in_time = 0
    for _ in range(4):
        seconds = rng.uniform(0.1, 0.8) * undisturbed.seconds
        in_time += kill_during(
            client, f"{name}, killed after {seconds:.1f} s", ROUNDS[name],
            lambda run, seconds=seconds: run.join(seconds) is None, tally,
        )  # fmt: skip
    assert in_time >= 2


def test_clients_are_closed(tally: Tally) -> None:
    for name in ("KernelRidge, pcg, held", "FeatureRidge"):
        job = (ITERATIONS | ROUNDS)[name]
        with local_cluster(1, processes=False) as client:
            run = Run(lambda job=job: job(True))
            at_work(client)
            client.close()
            run.judge(tally, f"{name}, client closed", refused(RuntimeError, "client was closed", "Connect a new"))


def test_no_workers_are_left(tally: Tally) -> None:
    for name in ("KernelRidge, pcg, held", "FeatureRidge"):
        job = (ITERATIONS | ROUNDS)[name]
        with (
            local_cluster(1, processes=False) as client,
            dask.config.set({"distributed.scheduler.no-workers-timeout": "1 s"}),
        ):
            run = Run(lambda job=job: job(True))
            at_work(client)
            client.cluster.scale(0)
            run.judge(
                tally, f"{name}, no workers", refused(RuntimeError, "no running workers", "none", "Start workers"), 30
            )


@thorough
def test_all_workers_are_killed(tally: Tally) -> None:
    """For good, or to come back."""
    for restart in (False, True):
        with (
            local_cluster(2) as client,
            dask.config.set({"distributed.scheduler.no-workers-timeout": "2 s"} if not restart else {}),
        ):
            victims = ready(client)
            run = Run(lambda: feature_ridge(True))
            at_work(client)
            for victim in victims.values():
                os.kill(victim, signal.SIGKILL)
            if not restart:
                client.cluster.scale(0)
            judge = equals(feature_ridge(False)) if restart else refused(RuntimeError, "no running workers", "none")
            run.judge(tally, f"all workers killed, restart={restart}", judge)


@thorough
def test_schedulers_go(tally: Tally) -> None:
    with local_cluster(1, processes=False) as client:
        run = Run(lambda: kernel_ridge("pcg")(True))
        at_work(client)
        client.cluster.close()
        run.judge(tally, "scheduler gone", refused(RuntimeError, "lost its scheduler", "Connect a new"))


def test_data_are_cancelled(tally: Tally) -> None:
    X, y = problem()
    features = NTKFeatures(n_components=8, random_state=0)
    models = [
        FeatureRidge(features, alphas=1.0),
        KernelRidge("gaussian", lengthscale=1.0, alphas=1.0, solver="pcg"),
    ]
    with local_cluster(1, processes=False) as client:
        for model in models:
            rows = blocks_of(X).persist()
            run = Run(lambda model=model, rows=rows: model.fit(rows, y))
            at_work(client)
            client.cancel(rows)
            judge = refused(RuntimeError, "Dask cancelled a task", "da.from_zarr")
            run.judge(tally, f"{type(model).__name__}, rows cancelled", judge, 30)


@thorough
def test_scattered_rows_are_lost(client: Client, tally: Tally) -> None:
    """The data cannot be loaded again, and the error says so."""
    X, y = problem()
    victims = ready(client)
    victim = min(victims)
    futures = client.scatter(list(np.split(X, N // CHUNK)), workers=[victim], hash=False)
    rows = da.concatenate([da.from_delayed(f, (CHUNK, X.shape[1]), X.dtype) for f in map(dask.delayed, futures)])
    os.kill(victims[victim], signal.SIGKILL)
    time.sleep(0.5)
    run = Run(lambda: FeatureRidge(NTKFeatures(n_components=8, random_state=0), alphas=1.0).fit(rows, y))
    run.judge(tally, "scattered rows", refused(RuntimeError, "client.scatter", "da.from_zarr"))


@thorough
def test_memory_runs_out(tally: Tally) -> None:
    X, y = problem()
    hungry = lambda rows: (np.ones(2**28), time.sleep(5)) and rows  # noqa: E731  (2 GiB)
    failures = {"distributed.scheduler.allowed-failures": 1}
    with dask.config.set(failures), local_cluster(1, memory_limit="600MiB") as client:
        ready(client)
        rows = da.from_array(X, chunks=(CHUNK, -1)).map_blocks(hungry, meta=X[:0])
        for model in (
            FeatureRidge(NTKFeatures(n_components=8, random_state=0), alphas=1.0),
            KernelRidge("gaussian", lengthscale=1.0, alphas=1.0),
        ):
            run = Run(lambda model=model: model.fit(rows, y))
            judge = refused(RuntimeError, "2 workers died", "memory", "memory_limit")
            run.judge(tally, f"{type(model).__name__}, memory", judge)


@thorough
def test_modules_are_missing_on_the_workers(tally: Tally) -> None:
    """Workers that cannot read a task leave."""
    X, y = problem()
    with local_cluster(1) as client, dask.config.set({"distributed.scheduler.no-workers-timeout": "5 s"}):
        ready(client)
        rows = da.from_array(X, chunks=(CHUNK, -1)).map_blocks(problem_of, meta=X[:0])
        run = Run(lambda: FeatureRidge(NTKFeatures(n_components=8, random_state=0), alphas=1.0).fit(rows, y))
        run.judge(tally, "module missing", refused(RuntimeError, "no running workers", "module"))


def problem_of(rows: np.ndarray) -> np.ndarray:
    """Rows, by a function that workers cannot import."""
    return rows


@pytest.mark.parametrize("where", ["X", "y", "sample_weight"])
def test_one_block_is_bad(where: str, tally: Tally) -> None:
    """The error is an ntkit error, names the block, and is short."""
    X, y = problem()
    values = {"X": X, "y": y, "sample_weight": np.ones(N)}
    values[where] = values[where].copy()
    values[where][7 * CHUNK + 3] = np.nan
    features = NTKFeatures(n_components=8, random_state=0)
    with local_cluster(1, processes=False):
        rows, targets, weight = (da.from_array(v, chunks=(CHUNK, *v.shape[1:])) for v in values.values())
        jobs: list[Callable[[], Any]] = [
            lambda: FeatureRidge(features, alphas=1.0).fit(rows, targets, weight),
            lambda: FeatureRidge(make_pipeline(StandardScaler(), features), alphas=1.0).fit(rows, targets, weight),
        ]
        if where == "X":
            fitted = FeatureRidge(features, alphas=1.0).fit(problem()[0], y)
            jobs += [fitted.predict(rows).compute, features.fit(X[:5]).transform(rows).compute]
        for number, job in enumerate(jobs):
            run = Run(job)

            def judge(run: Run) -> Verdict:
                lines = "".join(traceback.format_exception(run.error)).count("\n") if run.error else 0
                assert lines < 100
                return refused(ValueError, where, "X.partitions[7]")(run)

            run.judge(tally, f"NaN in {where}, job {number}", judge, 30)
