"""The ranks agree after each step on Ctrl-C, a loss that is not finite, and the end, so that all leave after the same step."""

from __future__ import annotations

import math
from typing import Any

from lms3d import console, errors
from lms3d.errors import Diverged, Interrupted
from lms3d.ranks import replicas, variables
from lms3d.ranks.elastic import HostsChanged
from lms3d.training.callbacks.order import Place, TrainingCallback


class RankAgreement(TrainingCallback):
    """Makes true on all ranks what is true on one. Raises Interrupted (once all is saved), Diverged or HostsChanged."""

    place = Place.RANK_AGREEMENT
    _validated = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        run, memory = self.run, self.run.memory
        finite = math.isfinite(run.logs.get("loss", 0.0))
        elastic = (memory.due, memory.changed) if memory is not None else (False, False)
        asked, diverged, stop, due, changed = run.world.largest(
            [run.interrupt.asked, not finite, bool(self.model.stop_training), *elastic]
        )
        if diverged:
            what = "not finite on another rank" if finite else str(run.logs["loss"])
            raise self._diverged(f"the loss is {what}", "in")
        if stop:
            self.model.stop_training = True
        if stop or run.state.position.step == run.schedule.steps_per_epoch:  # all ranks validate one model
            replicas.average_statistics(self.model, run.world)
            self._equalise()
            self._require_finite()  # else history.csv and best.keras would have an epoch that no checkpoint has
        if asked:
            self._leave()
        if due:
            self._require_finite()
            run.commit(self.model, run.own_of_ranks(self.model))
        if changed:
            raise HostsChanged

    def on_test_begin(self, logs: Any = None) -> None:
        self._validated = 0

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._leave_if_asked()

    def on_test_end(self, logs: Any = None) -> None:
        while self._validated < self.run.validation_batches and self.run.world.size > 1:  # others have more batches
            self._leave_if_asked()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = bool(self.run.world.largest([bool(self.model.stop_training)])[0])

    def _leave_if_asked(self) -> None:
        self._validated += 1
        if self.run.world.largest([self.run.interrupt.asked])[0]:
            self._leave()

    def _leave(self) -> None:
        """Leaves once rank 0 has saved: a launcher ends the other ranks as soon as one is gone."""
        self._require_finite()
        self.run.save(self.model, self.run.own_of_ranks(self.model))
        self.run.world.wait()
        position = self.run.state.position
        raise errors.of_all_ranks(Interrupted(f"interrupted in epoch {position.epoch + 1} after step {position.step}"))

    def _equalise(self) -> None:
        """Gives all ranks the weights of rank 0: processors of different makes round differently."""
        differed = replicas.equalise(self.model, self.run.world)
        if differed and self.run.world.is_chief:
            console.say(
                f"The ranks' weights were not the same bits after epoch {self.run.state.position.epoch + 1} ({differed}): all "
                "go on with those of rank 0. Other makes of processor differ by rounding; more is a fault of a machine"
            )

    def _require_finite(self) -> None:
        """Diverged if a variable is not finite: the loss is older than the last update, which may have made weights infinite."""
        bad = variables.not_finite(variables.variables(self.model))
        if self.run.world.largest([bool(bad)])[0]:
            raise self._diverged(f"{bad or 'a variable of another rank'} is not finite", "after")

    def _diverged(self, what: str, when: str) -> Diverged:
        position = self.run.state.position
        return errors.of_all_ranks(
            Diverged(
                f"{what} {when} epoch {position.epoch + 1}, step {position.step}; {self.run.saved}; try a smaller "
                "--learning-rate or --precision float32 in another run"
            )
        )
