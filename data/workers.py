"""Runs one function over many items in several processes.

Processes are spawned, never forked, because TensorFlow's threads, which the parent may have, do not survive a fork. The modules
that workers import (all of `data` but `stream` and the pipelines) do not import TensorFlow, so that a worker starts in a second.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from joblib import cpu_count  # type: ignore[import-untyped]

from lms3d.data.errors import DataError
from lms3d.data.files import Progress

_MOST_WORKERS = 16  # a worker needs up to 1 GB; more of them would gain little time for a lot of memory


def worker_count(items: int, workers: int | None) -> int:
    """The number of processes for `items` pieces of work: `workers`, or the cores that this process (or its container) may use."""
    if workers is not None and workers < 1:
        raise DataError(f"workers: found {workers}; expected at least 1; leave it out to use every core")
    return max(1, min(items, workers or min(cpu_count(), _MOST_WORKERS)))


def run_all(
    function: Callable[..., Any],
    items: Sequence[tuple[Any, ...]],
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    what: str = "",
) -> None:
    """Calls `function(*item)` for every item. The first error stops the rest and is raised unchanged.

    function: importable by name; it works by side effect (it writes files). With one worker no process is spawned.
    """
    count = worker_count(len(items), workers)
    if progress:
        progress(0, len(items), what)
    if count == 1:
        _report((function(*item) for item in items), len(items), progress, what)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=_start_worker) as pool:
        futures: list[Future[Any]] = [pool.submit(function, *item) for item in items]
        try:
            _report((future.result() for future in as_completed(futures)), len(items), progress, what)
        except BrokenProcessPool:
            raise DataError(
                f"{what}: found a worker process that ended by itself; expected it to finish; it may have run out of "
                "memory (use fewer workers), or the calling script lacks `if __name__ == '__main__':`"
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _report(results: Iterable[Any], total: int, progress: Progress | None, what: str) -> None:
    for done, _ in enumerate(results, start=1):
        if progress:
            progress(done, total, what)


def _start_worker() -> None:
    """Limits a worker to one thread, since the processes already fill the cores."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C, and cancels the pool
    import numpy  # noqa: F401  # loads its BLAS, which threadpool_limits must find
    import SimpleITK as sitk
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    threadpool_limits(1)  # BLAS threads of several processes would spin while they wait for each other
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(1)
