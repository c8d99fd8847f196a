"""The callback that keeps a run: best weights, history, and a checkpoint from which it goes on exactly.

At the end of an epoch history.csv and best.keras are written before the checkpoint. A run that goes on from a checkpoint takes
back what is later than it: the checkpoint knows which best.keras was the best (by its digest), and the one before is kept.

Of several ranks, rank 0 alone writes. Whatever decides how a run goes on (Ctrl-C on one machine, a loss that is no number,
a callback that stops) is agreed on after each step, so that all ranks leave at the same step.
"""

from __future__ import annotations

import copy
import csv
import io
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lms3d import console, errors, files
from lms3d.errors import Diverged, InputError, Interrupted
from lms3d.files import also_as, replacing, write_text
from lms3d.ranks import replicas
from lms3d.ranks.elastic import HostsChanged, Memory
from lms3d.ranks.world import World
from lms3d.training import checkpoint
from lms3d.training.interrupt import Interrupt

Row = dict[str, float]
FIRST_COLUMNS = ("epoch", "loss", "val_loss", "learning_rate", "seconds")


@dataclass(frozen=True)
class Position:
    """How far a run is: `step` steps of `epoch` are done (from 0). With all steps done, validation is still due."""

    epoch: int = 0
    step: int = 0


class Keeper(keras.callbacks.Callback):
    """Stands last in the list of callbacks, so that it saves what the others have decided and restores what they reset.

    watched: the other callbacks whose attributes belong to the state of the run, as name -> (callback, attributes).
    validation_batches: of the rank that has the most; all ranks agree so many times during a validation.
    batch_size: samples of a step on one rank. memory: of an elastic job, for commits.
    rows: the finished epochs, one per line of history.csv; this callback appends to it.
    """

    def __init__(
        self,
        run_dir: Path,
        watched: Mapping[str, tuple[Any, tuple[str, ...]]],
        interrupt: Interrupt,
        world: World,
        steps_per_epoch: int,
        *,
        validation_batches: int = 0,
        batch_size: int = 1,
        memory: Memory | None = None,
    ) -> None:
        super().__init__()
        self.run_dir, self.watched, self.interrupt, self.world = run_dir, watched, interrupt, world
        self.steps_per_epoch, self.validation_batches = steps_per_epoch, validation_batches
        self.memory = memory
        self.samples_per_step = world.size * batch_size
        self.samples = 0  # taken from the stream so far, by all ranks together
        self.rows: list[Row] = []
        self.position = Position()
        self.best_loss = math.inf
        self.best = ""  # digest of best.keras
        self._kept = "nothing was saved before"
        self.stopped_early = False
        self.training_logs: Row = {}  # of this rank and of the epoch under way, after its last step
        self._states: dict[str, dict[str, Any]] = {}
        self._metrics: replicas.Arrays = {}  # to be put back when the interrupted epoch begins again
        self._own: replicas.Arrays = {}  # what else was this rank's own when the run was interrupted
        self._own_of_all: list[replicas.Arrays] = []  # both, of all ranks
        self._validated = 0
        self._seconds, self._begin = 0.0, 0.0
        self._writer: Any = None

    # -- going on ------------------------------------------------------------------------------------------------------

    def resume(self, model: keras.Model, *, from_file: bool = True) -> bool:
        """Puts model and optimiser of rank 0, and the run on all ranks, back where it stopped; False if there is no
        checkpoint. The other ranks get the variables by `World.synchronise`; then call `put_back`."""
        found = self.world.from_chief(lambda: self._load(model, from_file))
        if found is None:
            return False
        state, own = found
        self.rows, self._seconds = state["rows"], state["seconds"]
        self.best_loss, self.best = state["best_loss"], state["best"]
        self._states, self.stopped_early = state["callbacks"], state["stopped_early"]
        self.position, self.samples = Position(*state["position"]), state["samples"]
        self._note_kept()
        self._own_of_all = own
        if own:
            mine = replicas.of_rank(own, self.world)
            within = 0 < self.position.step < self.steps_per_epoch  # may have changed with the number of ranks
            self._metrics = replicas.part(mine, "metrics/") if within else {}
            self._own = replicas.part(mine, "own/")
            logs = replicas.part(mine, "logs/")
            self.training_logs = {name.removeprefix("logs/"): float(value) for name, value in logs.items()}
        return True

    def put_back(self, model: keras.Model) -> None:
        """Sets what was this rank's own in the model when the run was interrupted."""
        for name, array in self._own.items():
            replicas.own_variables(model)[name].assign(array)
        self._own = {}
        if self.memory is not None:  # a rank may become rank 0 before its first commit is due
            self.memory.commit(*self._content(model, self._own_of_all))

    def _load(self, model: keras.Model, from_file: bool) -> tuple[dict[str, Any], list[replicas.Arrays]] | None:
        """The state of the run, for this number of ranks, and what was each rank's own; sets the variables."""
        path, damage = checkpoint.path_in(self.run_dir), ""
        if self.memory is not None and self.memory.checkpoint is not None:
            arrays, state = copy.deepcopy(self.memory.checkpoint)
        elif from_file and checkpoint.generations(self.run_dir):
            arrays, state, damage = checkpoint.latest(path)
        else:
            return None
        if "samples_per_step" not in state:
            raise InputError(
                f"{path} is of a version of lms3d that is too early; start another run, with another --output"
            )
        state.setdefault("best", "")  # of an earlier version: best.keras stays what it is
        checkpoint.assign(checkpoint.variables(model), arrays, path)
        if damage:
            console.say(f"{damage}: going on from the one before it, saved {_after(*state['position'])}")
        self._take_back(state)
        if self.world.size != state["size"]:
            model.optimizer.learning_rate = _rate(model) * self.world.size / state["size"]
        epoch, step = state["position"]
        state["position"] = epoch, self._place(step, state["steps_per_epoch"], state["samples_per_step"])
        return state, replicas.split(arrays)

    def _take_back(self, state: dict[str, Any]) -> None:
        """Puts history.csv and best.keras back to what they were when `state` was saved. Where those weights are lost the
        next ones will be the best: a loss that no file has would keep all others out."""
        if state["rows"]:
            write_text(self.run_dir / "history.csv", as_csv(state["rows"]))
        if not state["best"] or _is(self._best_path, state["best"]):
            return
        if _is(self._older_best_path, state["best"]):
            also_as(self._older_best_path, self._best_path)
            return
        console.say(f"{self._best_path} is not what this run wrote: the weights after the next epoch take its place")
        state["best_loss"], state["best"] = math.inf, ""

    @property
    def _best_path(self) -> Path:
        return self.run_dir / "best.keras"

    @property
    def _older_best_path(self) -> Path:
        return self.run_dir / "last" / "best.older.keras"

    def _place(self, step: int, steps_per_epoch: int, samples_per_step: int) -> int:
        """A step within an epoch of a run with other steps, in steps of this one. The last stays the last."""
        if step == steps_per_epoch:
            return self.steps_per_epoch
        if samples_per_step != self.samples_per_step:
            step = round(step * samples_per_step / self.samples_per_step)
        return min(step, self.steps_per_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        self.restore_watched()

    def restore_watched(self) -> None:
        """Undoes the reset that Keras callbacks do when `fit` begins."""
        for name, values in self._states.items():
            for attribute, value in values.items():
                setattr(self.watched[name][0], attribute, value)

    # -- an epoch ------------------------------------------------------------------------------------------------------

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch != self.position.epoch:
            self.position = Position(epoch)
        self._begin = time.monotonic()
        if self._metrics:
            checkpoint.assign(checkpoint.metric_variables(self.model), self._metrics, checkpoint.path_in(self.run_dir))
            self._metrics = {}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.position = Position(self.position.epoch, self.position.step + 1)
        self.samples += self.samples_per_step
        self.training_logs = floats(logs)
        finite = math.isfinite(self.training_logs.get("loss", 0.0))
        elastic = (self.memory.due, self.memory.changed) if self.memory is not None else (False, False)
        asked, diverged, stop, due, changed = self.world.largest(
            [self.interrupt.asked, not finite, bool(self.model.stop_training), *elastic]
        )
        if diverged:
            raise self._diverged(f"the loss is {self._bad_loss(finite)}", "in")
        if stop:
            self.model.stop_training = True
        if stop or self.position.step == self.steps_per_epoch:  # validation follows: of one model, not of one per rank
            self.world.average_statistics(self.model)
            self._require_finite()  # else history.csv and best.keras would have an epoch that no checkpoint has
        if asked:
            self._leave()
        if due:
            self._commit()
        if changed:
            raise HostsChanged

    def on_test_begin(self, logs: Any = None) -> None:
        self._validated = 0

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._leave_if_asked()

    def on_test_end(self, logs: Any = None) -> None:
        while self._validated < self.validation_batches and self.world.size > 1:  # this rank had fewer than others
            self._leave_if_asked()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        values = floats(logs)
        self.rows.append({**self._row(epoch, values), "seconds": self._seconds + time.monotonic() - self._begin})
        self._seconds = 0.0
        self.stopped_early = bool(self.watched["early_stopping"][0].stopped_epoch)
        better = values.get("val_loss", math.inf) < self.best_loss
        if better:
            self.best_loss = values["val_loss"]
        if self.world.is_chief:
            self._write_scalars(self.rows[-1])
            write_text(self.run_dir / "history.csv", as_csv(self.rows))
        if better:
            self.best = self.world.from_chief(self._keep_best)
        self.model.stop_training = bool(self.world.largest([bool(self.model.stop_training)])[0])
        self._capture_states()
        self.position = Position(epoch + 1)
        self._save([])

    def on_train_end(self, logs: Any = None) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _row(self, epoch: int, values: Row) -> Row:
        # The plateau callback has put the rate of this epoch into the logs, before it lowered it for the next.
        rate = values.get("learning_rate", _rate(self.model))
        row = {"epoch": epoch + 1, **values, "learning_rate": rate, "seconds": 0.0}
        return {name: row[name] for name in (*FIRST_COLUMNS, *row) if name in row}

    def _keep_best(self) -> str:
        """Writes best.keras, keeps the one before; returns the digest."""
        with replacing(self._best_path) as partial:
            without_training(self.model).save(partial)
            digest = files.digest(partial)
            if self._best_path.exists():
                also_as(self._best_path, self._older_best_path)
        return digest

    def _write_scalars(self, row: Row) -> None:
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(str(self.run_dir / "tensorboard"))
        with self._writer.as_default(), tf.device("CPU:0"):
            for name, value in row.items():
                tf.summary.scalar(name, value, step=int(row["epoch"]))
        self._writer.flush()

    # -- saving --------------------------------------------------------------------------------------------------------

    def _leave_if_asked(self) -> None:
        self._validated += 1
        if self.world.largest([self.interrupt.asked])[0]:
            self._leave()

    def _leave(self) -> None:
        """Saves what is each rank's own, too. No rank goes before rank 0 has written it: a launcher ends the others."""
        self._stop_clock()
        self._require_finite()
        self._save(self._gather_own())
        self.world.wait()
        raise errors.of_all_ranks(
            Interrupted(f"interrupted in epoch {self.position.epoch + 1} after step {self.position.step}")
        )

    def _commit(self) -> None:
        """Keeps in memory what `_leave` saves."""
        self._stop_clock()
        self._require_finite()
        assert self.memory is not None
        self.memory.commit(*self._content(self.model, self._gather_own()))

    def _gather_own(self) -> list[replicas.Arrays]:
        """What each rank has for itself in the midst of an epoch."""
        within = self.position.step < self.steps_per_epoch  # else the sums are complete: `training_logs` has them
        own = {f"logs/{name}": np.asarray(value) for name, value in self.training_logs.items()}
        own |= checkpoint.read(checkpoint.metric_variables(self.model)) if within else {}
        own |= checkpoint.read(replicas.own_variables(self.model)) if self.world.size > 1 else {}
        return self.world.everyone(own)

    def _stop_clock(self) -> None:
        self._seconds, self._begin = self._seconds + time.monotonic() - self._begin, time.monotonic()

    def _require_finite(self) -> None:
        """The loss that was looked at is the one before the last update: it may have been the one that spoiled all."""
        bad = checkpoint.not_finite(checkpoint.variables(self.model))
        if self.world.largest([bool(bad)])[0]:
            raise self._diverged(f"{bad or 'a variable of another rank'} is not finite", "after")

    def _diverged(self, what: str, when: str) -> Diverged:
        return errors.of_all_ranks(
            Diverged(
                f"{what} {when} epoch {self.position.epoch + 1}, step {self.position.step}; {self._kept}; try a smaller "
                "--learning-rate or --precision float32 in another run"
            )
        )

    def _bad_loss(self, finite: bool) -> str:
        return "not finite on another rank" if finite else str(self.training_logs["loss"])

    def _capture_states(self) -> None:
        self._states = {
            name: {attribute: getattr(callback, attribute) for attribute in attributes}
            for name, (callback, attributes) in self.watched.items()
        }

    def _save(self, own: Sequence[replicas.Arrays]) -> None:
        """own: what each rank has for itself in the midst of an epoch."""
        if self.world.is_chief or self.memory is not None:
            arrays, state = self._content(self.model, own)
        if self.memory is not None:
            self.memory.commit(arrays, state)
        if self.world.is_chief:
            checkpoint.save(checkpoint.path_in(self.run_dir), arrays, state)

        self._note_kept()

    def _note_kept(self) -> None:
        self._kept = f"last/ stays as it was saved {_after(self.position.epoch, self.position.step)}"

    def _content(
        self, model: keras.Model, own: Sequence[replicas.Arrays]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays and the state of a checkpoint."""
        state = {
            "position": (self.position.epoch, self.position.step),
            "samples": self.samples,
            "size": self.world.size,
            "steps_per_epoch": self.steps_per_epoch,
            "samples_per_step": self.samples_per_step,
            "rows": self.rows,
            "best_loss": self.best_loss,
            "best": self.best,
            "seconds": self._seconds,
            "callbacks": self._states,
            "stopped_early": self.stopped_early,
        }
        return {**checkpoint.read(checkpoint.variables(model)), **replicas.joined(own)}, state


def without_training(model: keras.Model) -> keras.Model:
    """The same layers and weights without loss, metrics and optimiser, so that loading needs none of their classes."""
    if not getattr(model, "inputs", None):  # a subclassed model has no graph of layers
        return model
    return keras.Model(model.inputs, model.outputs, name=model.name)


def _is(path: Path, digest: str) -> bool:
    return path.is_file() and files.digest(path) == digest


def _after(epoch: int, step: int) -> str:
    return f"in epoch {epoch + 1} after step {step}" if step else f"after epoch {epoch}"


def _rate(model: keras.Model) -> float:
    return float(np.asarray(model.optimizer.learning_rate))


def floats(logs: Mapping[str, Any] | None) -> Row:
    """Keras logs, which may hold tensors, as plain numbers."""
    return {name: float(np.asarray(value)) for name, value in (logs or {}).items()}


def as_csv(rows: list[Row]) -> str:
    """One line per epoch, with a header."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: f"{value:.7g}" for name, value in row.items()} for row in rows)
    return stream.getvalue()
