"""best.keras: the weights of the epoch with the lowest validation loss, and those before them."""

from __future__ import annotations

import math
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import keras

from lms3d import files
from lms3d.files import link_or_copy, replacing
from lms3d.training.callbacks.order import Place, TrainingCallback
from lms3d.training.run_state import floats


class BestWeights(TrainingCallback):
    """Rank 0 writes the file; all ranks know its digest, which tells a resumed run whether it is the one of its state."""

    place = Place.BEST_WEIGHTS

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        loss = floats(logs).get("val_loss", math.inf)
        if loss < self.run.state.best_loss:
            self.run.update(best_loss=loss, best=self.run.world.from_chief(self._write))

    def _write(self) -> str:
        """Returns the digest."""
        path = path_in(self.run.dir)
        with replacing(path) as partial:
            without_training(self.model).save(partial)
            digest = files.digest(partial)
            if path.exists():
                link_or_copy(path, older_in(self.run.dir))
        return digest


def path_in(run_dir: Path) -> Path:
    """Where the best weights of a run lie."""
    return run_dir / "best.keras"


def put_back(run_dir: Path, model: keras.Model) -> None:
    """Loads them into the model that was trained; leaves it as it is where there are none.

    From a file of their own: within an archive each step back begins anew at the member's first byte, which makes 1.4 s of
    processor time out of 0.4 s (the 8 million weights of isensee2017, Python 3.11, `time.process_time` around `load_weights`).
    """
    path, model = path_in(run_dir), without_training(model)
    if not path.exists():
        return
    try:
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as archive:
            model.load_weights(archive.extract("model.weights.h5", folder))
    except OSError:  # such as no room for that file
        model.load_weights(path)


def older_in(run_dir: Path) -> Path:
    """Where those before them lie."""
    return run_dir / "last" / "best.older.keras"


def without_training(model: keras.Model) -> keras.Model:
    """The same layers and weights without loss, metrics and optimiser, so that loading needs none of their classes."""
    if not getattr(model, "inputs", None):  # a subclassed model has no graph of layers
        return model
    return keras.Model(model.inputs, model.outputs, name=model.name)
