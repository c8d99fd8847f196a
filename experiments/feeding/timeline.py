"""Timelines of the input pipelines: when the device computes, when it waits, and when the pipeline works. No TensorFlow here.

Profiles of a few steps with each order, read by the code of `experiments.profile`. This module as a program makes them, as rank 0
of so many ranks, whose samples it takes: real training steps, or those of a device that sleeps. A device that sleeps leaves all
cores to the pipeline, as a GPU does; its sleep stands in the profile as an op, `device:Sleep`.

    python -m experiments.feeding.timeline '{"shards": ..., "folders": {"old": DIR, ..}, "ranks": 2, "device_speed": 600, ...}'
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lms3d import errors
from lms3d.experiments.feeding.results import DEVICE, KINDS, TRAINING
from lms3d.experiments.harness import commands
from lms3d.experiments.harness.child import of_module
from lms3d.experiments.harness.table import cell, markdown, write_csv
from lms3d.experiments.profiling import lanes, measure, xplane
from lms3d.experiments.profiling.lanes import COMPUTE, DATA, WAIT, Trace
from lms3d.experiments.profiling.measure import Profile
from lms3d.ranks.world import World

COLUMNS = (
    "kind", "order", "images_per_second", "busy_share", "waiting_share", "data_share", "data_overlap_share", "step_seconds",
)  # fmt: skip
NOTES = """\
Device computes: at least one operation of the step runs; if no network trains, the device sleeps for as long as a step would
last. Waits: in tf.data's iterator, between two steps. Pipeline works: at least one operation of tf.data's functions runs (reading,
shuffling and batching are not such); hidden: of that time, while the device computes. One process, which takes the samples of rank
0. The profiler takes time itself."""
TIMED = (DEVICE, TRAINING)
"""The kinds that have steps."""


LEAD_STEPS = 12
"""Before the profile: buffers fill, tf.data tunes itself."""


def profiles(kind: str, asked: Mapping[str, Any], orders: Sequence[str], folder: Path) -> dict[str, Trace]:
    """Order -> its trace; those that `folder` does not hold yet are profiled by a process of their own."""
    places = {order: folder / f"{kind}-{order}" for order in orders}
    missing = {order: str(place) for order, place in places.items() if not list(place.rglob("*.xplane.pb"))}
    if missing:
        words = json.dumps({**asked, "folders": missing})
        commands.run([*of_module("lms3d.experiments.feeding.timeline"), words])
    return {order: lanes.read(xplane.newest(place)) for order, place in places.items()}


def table(found: Mapping[tuple[str, str], Trace], batch_size: int) -> str:
    """Markdown: one row for each kind and order."""
    head = ("", "order", "images/s", "device computes", "device waits", "pipeline works", "of that, hidden")
    rows = []
    for (kind, order), trace in found.items():
        row = record(kind, order, measure.profile(trace), batch_size)
        shares = (row[name] for name in ("busy_share", "waiting_share", "data_share", "data_overlap_share"))
        cells = [cell(share, lambda share: f"{100 * share:.1f} %") for share in shares]
        rows.append([KINDS[kind], order, f"{row['images_per_second']:.3g}", *cells])
    return markdown(head, rows)


def record(kind: str, order: str, profile: Profile, batch_size: int) -> dict[str, Any]:
    """A row of the CSV file. images_per_second: of the whole range, waits included."""
    images = len(profile.step_seconds) * batch_size
    return {
        "kind": kind, "order": order, "images_per_second": images / profile.range_seconds, "busy_share": profile.busy_share,
        "waiting_share": profile.waiting_seconds / profile.range_seconds, "data_share": profile.data_share,
        "data_overlap_share": profile.data_overlap_share, "step_seconds": profile.middle_step_seconds,
    }  # fmt: skip


def write(found: Mapping[tuple[str, str], Trace], batch_size: int, folder: Path) -> None:
    """Writes timelines.csv, timelines.png, and a trace for ui.perfetto.dev of each."""
    from lms3d.experiments.profiling import figure, perfetto

    rows = [record(kind, order, measure.profile(trace), batch_size) for (kind, order), trace in found.items()]
    write_csv(folder / "timelines.csv", COLUMNS, rows)
    titles = [(f"{KINDS[kind]}: {order} order", trace) for (kind, order), trace in found.items()]
    figure.draw(titles, folder / "timelines.png", lanes=("steps", COMPUTE, WAIT, DATA), enlarged=False)
    for (kind, order), trace in found.items():
        perfetto.write(trace, folder / "timelines" / f"{kind}-{order}.trace.json")


def main(arguments: list[str]) -> int:
    return errors.run(lambda: _main(json.loads(arguments[0])))


def _main(asked: dict[str, Any]) -> None:
    from lms3d.device.startup import start_tensorflow

    if asked["cores"] is not None:  # before TensorFlow counts them
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: asked["cores"]])
    start_tensorflow(seed=0, precision=asked["precision"], without_gpu=asked["device_speed"] is not None)
    step = _stepper(asked)
    for order, folder in asked["folders"].items():
        _profile_order(order, folder, step, asked)


def _profile_order(order: str, folder: str, step: Callable[[Any], None], asked: dict[str, Any]) -> None:
    import tensorflow as tf

    from lms3d.engine.tensorflow import marks
    from lms3d.experiments.feeding import orders
    from lms3d.experiments.feeding.images import training_part

    part = training_part(asked["shards"])
    batches = iter(orders.ORDERS[order](part, batch_size=asked["batch_size"], seed=0, rank=0, size=asked["ranks"]))
    for number in range(LEAD_STEPS + asked["steps"]):
        if number == LEAD_STEPS:
            tf.profiler.experimental.start(folder)
        batch = next(batches)
        with marks.step("train", number):
            step(batch)
    tf.profiler.experimental.stop()


def _stepper(asked: dict[str, Any]) -> Callable[[Any], None]:
    """Batch -> a step, done when this returns."""
    import tensorflow as tf

    if asked["device_speed"] is None:
        from lms3d.experiments.feeding import loop

        return loop.stepper(loop.network(asked["model"], asked["resolution"], World()))

    def sleep(_: Any) -> None:
        with tf.profiler.experimental.Trace("device:Sleep"):
            time.sleep(asked["batch_size"] / asked["device_speed"])

    return sleep


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
