"""Dask clusters on this machine, for tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
from distributed import Client, LocalCluster
from distributed.utils import get_mp_context, silence_logging_cmgr


@contextmanager
def local_cluster(n_workers: int, *, processes: bool = True, **options: Any) -> Iterator[Client]:
    """Client of a cluster, which Dask computes on; processes are forks of one that has ntkit loaded, so start soon."""
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
        silence_logging_cmgr(logging.CRITICAL),
    ):
        if processes:
            get_mp_context().set_forkserver_preload(["distributed", "dask.array", "ntkit.distributed"])
        limit = "2GiB" if processes else "1TiB"  # of a process: threads share the one of the tests
        options = {"threads_per_worker": 1, "memory_limit": limit, "silence_logs": logging.CRITICAL} | options
        with (
            LocalCluster(n_workers=n_workers, processes=processes, dashboard_address=":0", **options) as cluster,
            Client(cluster) as client,
        ):
            yield client
