"""The slabs of each step belong to the run: they are saved with it, used again after a resume, and the same on all ranks."""

from __future__ import annotations

from typing import Any

from lms3d import errors
from lms3d.errors import InputError
from lms3d.keras_step.callback import LMS
from lms3d.training.callbacks.order import Place, TrainingCallback
from lms3d.training.run import TrainingRun


class KeptSlabs(TrainingCallback):
    """Keeps the slabs of a run that has LMS among its callbacks. InputError if ranks have cut the same step differently."""

    place = Place.KEPT_SLABS

    def __init__(self, run: TrainingRun) -> None:
        super().__init__(run)
        self._compared = False

    def on_train_begin(self, logs: Any = None) -> None:
        self._compared = False
        if self.run.state.slabs:
            for lms in self._all_lms():
                lms.keep_slabs(self.run.state.slabs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._note()
        if not self._compared:
            self._compare()
            self._compared = True

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._note()  # ranks may have different numbers of batches

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._compare()

    def _all_lms(self) -> list[LMS]:
        return [one for one in self.run.callbacks if isinstance(one, LMS)]

    def _note(self) -> None:
        for lms in self._all_lms():
            self.run.update(slabs={**self.run.state.slabs, **lms.kept_slabs})

    def _compare(self) -> None:
        """Compares the slabs of all ranks, which call this together."""
        mine = self.run.state.slabs
        everyone = self.run.world.everyone(dict(mine))
        for step in sorted(mine):
            found = [of_rank.get(step, mine[step]) for of_rank in everyone]
            if len(set(found)) > 1:
                differing = ", ".join(f"rank {rank} {slabs}" for rank, slabs in enumerate(found))
                raise errors.of_all_ranks(
                    InputError(
                        f"the ranks have cut the {step.split()[0]} step into different slabs ({differing}): give all the same "
                        "--memory-limit and --swap-tier, and folders of one file system to --swap-dir, or the slabs with --slabs"
                    )
                )
