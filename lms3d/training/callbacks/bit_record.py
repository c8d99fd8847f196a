"""`--record-bits`: compares the bits of this rank's batches and variables with earlier jobs', after each training step.

Two jobs with the same options on the same machine should have the same bits. If they do not, the first step that differs shows why.
Adam's first moment shows whose gradient differed. If one number or eight in a row differ, a processor made a mistake; if all of
them differ, a sum was rounded in another order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lms3d import console, errors
from lms3d.atomic_files import writable_folder
from lms3d.device import circumstances
from lms3d.errors import InputError
from lms3d.keras_step.callback import LMS
from lms3d.ranks import variables
from lms3d.training.bit_log import BitLog
from lms3d.training.callbacks.order import Place, TrainingCallback
from lms3d.training.run import TrainingRun


class BitRecord(TrainingCallback):
    """Records a run that has LMS among its callbacks: LMS sees the batches. Each `fit` opens and closes the file."""

    place = Place.BIT_RECORD

    @classmethod
    def wanted(cls, run: TrainingRun) -> bool:
        return run.job.record_bits is not None

    def __init__(self, run: TrainingRun) -> None:
        super().__init__(run)
        self.log: BitLog | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        if self.log is None or not self.log.differs:  # steps after a difference must differ, too
            self.log = self._opened()
            self._listen(self._note)

    def on_train_end(self, logs: Any = None) -> None:
        self._listen(None)
        if self.log is not None and self.log.close():
            found = "one differs" if self.log.differs else "none differs"
            if self.log.difference:
                found = "the first that differs is kept there"
            console.say(
                f"--record-bits {self.log.path.parent}: {self.log.added} steps added, {self.log.compared} compared; {found}"
            )

    def _opened(self) -> BitLog:
        """The file of this rank. InputError on all ranks if one of them has a file that cannot be used."""
        world, problem, log = self.run.world, "", None
        try:
            assert self.run.job.record_bits is not None, "wanted"
            folder = writable_folder(self.run.job.record_bits, "--record-bits")
            name, run = f"rank-{world.rank}-of-{world.size}", str(self.run.dir.resolve())
            log = BitLog(folder, name, run, asdict(circumstances.here()))
        except (InputError, errors.StorageError) as error:
            problem = str(error)
        if first := next(filter(None, world.everyone(problem)), ""):
            raise errors.of_all_ranks(InputError(first))
        assert log is not None, "no rank has a problem"
        return log

    def _listen(self, note: Callable[[keras.Model, Any], None] | None) -> None:
        for callback in self.run.callbacks:
            if isinstance(callback, LMS):
                callback.after_step = note

    def _note(self, model: keras.Model, batch: Any) -> None:
        """Notes the step that has just run, which is not counted yet."""
        position = self.run.state.position
        arrays = {f"batch/{number}": np.asarray(part) for number, part in enumerate(tf.nest.flatten(batch))}
        assert self.log is not None, "open while it listens"
        self.log.note(position.epoch + 1, position.step + 1, arrays | variables.read(variables.variables(model)))
