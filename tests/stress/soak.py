"""Long runs: do memory, open files, threads, swap files and step times stay as they are?

    steps    one tiny model under LMS, tens of thousands of steps
    shapes   a batch of another shape in each step, a thousand of them
    errors   a `fit`, an error in the midst of a step's callbacks, a `fit` again, a hundred times

Something that grows by a little in each step is a line with a slope. The slope is estimated by Theil and Sen's method (the median
of the slopes of all pairs), which single outliers do not bend, over the samples after the first third.
"""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from scipy import stats

from lms3d.atomic_files import write_json
from tests.stress.harness import Options, Part, Result

ALLOWED = {"memory_mib": 16.0, "open_files": 0.5, "threads": 0.5, "swap_files": 0.5, "step_seconds": 0.2}
"""Growth from the first third to the end that counts as flat. That of the step time is a share of it."""
_WIDTH, _LAYERS = 32, 6


@dataclass(frozen=True)
class Sample:
    """The figures of the process after so many steps."""

    steps: int
    memory_mib: float
    open_files: int
    threads: int
    swap_files: int
    step_seconds: float


def growth(seen: Sequence[Sample]) -> dict[str, tuple[float, float]]:
    """Figure -> how much it grew, and how much it may grow."""
    counted = seen[len(seen) // 3 :]
    at = np.array([one.steps for one in counted], float)
    found = {}
    for figure, allowed in ALLOWED.items():
        values = np.array([getattr(one, figure) for one in counted], float)
        grown = float(stats.theilslopes(values, at).slope * (at[-1] - at[0]))
        before = statistics.median(values[: max(1, len(values) // 4)]) if figure == "step_seconds" else 1.0
        found[figure] = grown, float(allowed * before)
    return found


def judged(seen: Sequence[Sample]) -> Result:
    """Whether all is flat."""
    found = growth(seen)
    told = [f"{figure} {grown:+.3g} (allowed: {allowed:.2g})" for figure, (grown, allowed) in found.items()]
    grown = [line for line, (by, allowed) in zip(told, found.values(), strict=True) if by > allowed]
    return Result(wrong=", ".join(grown), note=", ".join(told))


def steps(count: int, folder: Path) -> list[Sample]:
    """So many steps."""
    return _watched(
        lambda model, lms: model.fit(*_data(count), batch_size=2, verbose=0, callbacks=lms), count // 100, folder
    )


def shapes(count: int, folder: Path) -> list[Sample]:
    """So many shapes, each seen once."""
    import tensorflow as tf

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        # Short and long ones in turn: the kept ones are as large at the end as before.
        for number in range(count):
            length = 1 + (number // 2 if number % 2 else count - 1 - number // 2)
            yield (np.full((2, length, _WIDTH), 0.1, np.float32),) * 2

    data = tf.data.Dataset.from_generator(batches, output_signature=(tf.TensorSpec((2, None, _WIDTH)),) * 2)
    return _watched(lambda model, lms: model.fit(data, verbose=0, callbacks=lms), count // 100, folder)


def errors(count: int, folder: Path) -> list[Sample]:
    """So many errors, each followed by a training without one."""
    import keras

    class Stumble(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 3:
                raise RuntimeError("a test")

    def fit(model: Any, lms: list[Any]) -> None:
        for _ in range(count):
            with suppress(RuntimeError):
                model.fit(*_data(8), batch_size=2, verbose=0, callbacks=[*lms, Stumble()])
            model.fit(*_data(2), batch_size=2, verbose=0, callbacks=lms)

    return _watched(fit, 6 * count // 100, folder)


def _watched(fit: Callable[[Any, list[Any]], Any], every: int, folder: Path) -> list[Sample]:
    """Samples of a training by LMS with a disk, one after so many steps."""
    import keras

    import lms3d

    seen: list[Sample] = []

    class Watch(keras.callbacks.Callback):
        steps, seconds, begun = 0, list[float](), 0.0

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.begun = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.seconds.append(time.perf_counter() - self.begun)
            self.steps += 1
            if self.steps % max(1, every) == 0:
                seen.append(_sample(self.steps, swap_dir, statistics.median(self.seconds)))
                self.seconds.clear()

    keras.utils.set_random_seed(1)
    gc.collect()
    gc.freeze()  # the collection before each sample need not look at all that TensorFlow and Keras are made of
    inputs = y = keras.Input((None, _WIDTH))
    for _ in range(_LAYERS):
        y = keras.layers.Dense(_WIDTH, activation="tanh")(y)
    model = keras.Model(inputs, y)
    model.compile("adam", "mse", jit_compile=False)
    with tempfile.TemporaryDirectory(dir=folder) as swap_dir:
        lms = lms3d.LMS(
            tier="disk", swap_dir=swap_dir, swapout_threshold=6, swapin_ahead=2, swapin_groupby=0, sync_mode=0
        )
        fit(model, [lms, Watch()])
        if lms.plan is None or not lms.plan.swap_outs:
            raise RuntimeError("nothing was swapped: the soak proves nothing")
        lms.close()
    return seen


def _sample(steps: int, swap_dir: str, step_seconds: float) -> Sample:
    gc.collect()  # Keras leaves cycles behind a failed `fit`, which hold threads until they are found
    process = psutil.Process()
    return Sample(
        steps=steps,
        memory_mib=process.memory_info().rss / 2**20,
        open_files=process.num_fds(),
        threads=process.num_threads(),
        swap_files=sum(len(names) for _, _, names in os.walk(swap_dir)),
        step_seconds=step_seconds,
    )


def _data(steps: int) -> tuple[np.ndarray, np.ndarray]:
    array = np.full((2 * steps, 4, _WIDTH), 0.1, np.float32)
    return array, array


GROUPS = {"steps": steps, "shapes": shapes, "errors": errors}


def _cases(options: Options, group: str) -> list[str]:
    count = getattr(options, group)
    return [str(count)] if count else []


def _run(options: Options, group: str, case: str) -> Result:
    folder = options.output / "soak"
    folder.mkdir(exist_ok=True)
    seen = GROUPS[group](int(case), folder)
    write_json(folder / f"{group}-{case}.json", [asdict(one) for one in seen])
    return judged(seen)


SOAK = Part(groups=tuple(GROUPS), cases=_cases, run=_run, fresh=True, seconds=6 * 3600.0)
