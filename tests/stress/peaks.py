"""Predicted against measured peaks of small networks that the engine was not made for (`zoo`), without LMS's plan and in half.

Each trains three steps as it is, and three in half of the memory that it took. The losses must be equal bit by bit, and half of the
memory must be enough. A limit that no plan fits in is told, and so is each peak that is off by more than `NEAR`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lms3d.errors import DoesNotFit
from lms3d.units import format_size
from tests.stress.harness import Options, Part, Result

NEAR = 0.1
"""The share by which a measured peak may differ from the predicted one."""
POOL = "6GiB"


class Trained(NamedTuple):
    """What three steps took and made. predicted, measured: their peak in bytes; the first step, which warms up, does not count."""

    predicted: int
    measured: int
    loss: float


def zoo() -> dict[str, Callable[[], Any]]:
    """Name -> what makes the network and its batches. Imports TensorFlow."""
    from tests.stress.zoo import images, sequences, trainings, volumes

    return volumes.ZOO | images.ZOO | sequences.ZOO | trainings.ZOO


def train(make: Callable[[], Any], memory_limit: int | None = None) -> Trained:
    """Three steps under LMS in whole tensors. Raises DoesNotFit, and what TensorFlow raises if the pool is full."""
    import keras
    import tensorflow as tf

    import lms3d

    keras.utils.set_random_seed(1)
    subject, rows = make(), list[Any]()
    with tempfile.TemporaryDirectory() as folder:
        lms = lms3d.LMS(memory_limit, tier="disk", swap_dir=folder, adapt=False, slabs="off")
        add = lms.statistics.add
        lms.statistics.add = lambda row: (rows.append(row), add(row))[1]  # type: ignore[method-assign]
        batches = tf.data.Dataset.from_tensors((subject.x, subject.y)).repeat(3)
        history = subject.model.fit(batches, verbose=0, callbacks=[lms])
    assert lms.report is not None, "three steps have run"
    measured = max(int(row["peak_bytes"]) for row in rows[1:])
    return Trained(lms.report.predicted_peak_bytes, measured, float(history.history["loss"][-1]))


def _cases(options: Options, group: str) -> Sequence[str]:
    return list(zoo())


def _run(options: Options, group: str, case: str) -> Result:
    import lms3d

    lms3d.limit_memory(POOL)
    whole = train(zoo()[case])
    told, counts, limit = [f"without a plan: {words(whole)}"], {kind(whole): 1}, whole.measured // 2
    try:
        half = train(zoo()[case], limit)
    except DoesNotFit as error:
        return Result(note=f"{told[0]}; half of it: {error}", counts=counts | {"no plan for half": 1})
    told.append(f"in half: {words(half)}")
    return Result(wrong=wrong(whole, half, limit), note="; ".join(told), counts=counts | {f"half: {kind(half)}": 1})


def wrong(whole: Trained, under: Trained, limit: int) -> str:
    """The fault of steps under a limit; "" if there is none."""
    if under.measured > limit:
        return f"{format_size(under.measured)} under a limit of {format_size(limit)}"
    if under.loss == whole.loss or (under.loss != under.loss and whole.loss != whole.loss):
        return ""
    return f"the loss is {under.loss} under the limit, and {whole.loss} without"


def words(one: Trained) -> str:
    """The two peaks, for a line."""
    share = one.measured / one.predicted
    return f"predicted {format_size(one.predicted)}, measured {format_size(one.measured)} ({share:.2f} of it)"


def kind(one: Trained) -> str:
    """How the measured peak compares with the predicted one."""
    share = one.measured / one.predicted
    return "higher than predicted" if share > 1 + NEAR else "lower" if share < 1 - NEAR else "as predicted"


PEAKS = Part(groups=("zoo",), cases=_cases, run=_run, fresh=True, seconds=1800)
