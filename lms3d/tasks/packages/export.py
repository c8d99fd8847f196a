"""A trained network in a form that other programs run: a SavedModel or an ONNX file, without lms3d and without its own operations.

The network takes one normalised sample, "image" (1, *shape, channels) float32, and returns "probabilities". Beside it stands
model.json (`lms3d.tasks.packages.description`), which says how to normalise and what the outputs mean: in a SavedModel as
assets.extra/model.json, in an ONNX file as the property "lms3d".

EXPORT-1 It computes in float32, whatever the precision of the training: not every runtime has convolutions in half precision.
EXPORT-2 Nothing is written unless the file, read again, says what the network says of a case of the run's data. Random numbers take
         its place if the data are not there, and for a package, which does not know its data.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.atomic_files import make_folder, replacing, writable_folder
from lms3d.console import say
from lms3d.data.errors import DataError
from lms3d.data.files import new_directory, reported_writes
from lms3d.errors import InputError
from lms3d.tasks import task_of
from lms3d.tasks.packages import archive, package

_OPSET = 18
_ALLOWED = 1e-3
"""The largest difference in a probability. The order of sums differs, and so do kernels."""

Sample = tuple[str, np.ndarray]
"""See `Task.sample`."""
Run = Callable[[np.ndarray], np.ndarray]
Compare = Callable[[Any, Run], float]
"""The largest difference between a function of TensorFlow's and a form of it. InputError if that is too large."""


def target(source: Path, form: str, given: Path | None) -> Path:
    """The file or folder to write. InputError if something is there, or a package that the form needs is not installed."""
    missing = [name for name in _NEEDS[form] if find_spec(name) is None]
    if missing:
        raise InputError(
            f"--format {form}: found no {', '.join(missing)}; expected it installed: pip install 'lms3d[export]'"
        )
    name = source.resolve().name.removesuffix(archive.SUFFIX)
    folder = source if source.is_dir() else source.parent
    path = given or folder / (f"{name}.onnx" if form == "onnx" else f"{name}-savedmodel")
    if path.exists():
        raise InputError(f"--output {path}: found something there; expected a new name; remove it, or name another")
    writable_folder(path.parent, "--output")
    return path


def sample(source: Path) -> Sample | None:
    """A case of the run's data (EXPORT-2). None for a package, and if the data are not there, of which a note tells."""
    if source.is_file():
        return None
    run = package.trained_run(source)
    try:
        return task_of(run.trained).sample(run)
    except (InputError, DataError) as error:
        say(f"note: no case of the run can be read, and random numbers take its place: {error}")
        return None


def export(source: Path, form: str, path: Path, case: Sample | None) -> tuple[str, dict[str, str]]:
    """Writes the network of a run, or of a package, after a comparison on `case` (`sample`). Returns the title and the rows of the
    summary; TensorFlow must be running."""
    from lms3d.models import fused

    content = archive.read(source) if source.is_file() else package.make(source)
    said = content.model
    with fused.plain():  # the fused operations are lms3d's own
        model = package.opened(content, source).load(precision="float32")
        shape = said["network"]["input_shape"]
        name, image = case or ("random numbers", np.random.default_rng(0).normal(size=shape))
        compare = functools.partial(_compared, path, image[np.newaxis].astype(np.float32))
        difference = _WRITERS[form](_function(model, shape), model, said, path, compare)
    return f"exported: {path}", {
        "input": f"image, {'x'.join(map(str, (1, *shape)))}, normalised as model.json says",
        "output": f"probabilities: {', '.join(said['meaning']['outputs'])}",
        "compared": f"on {name} with the network itself: at most {difference:.1e} apart",
    }


def _function(model: Any, shape: list[int]) -> Any:
    import tensorflow as tf

    spec = tf.TensorSpec((1, *shape), tf.float32, name="image")

    @tf.function(input_signature=[spec], autograph=False, jit_compile=False)
    def forward(image: Any) -> dict[str, Any]:
        (probabilities,) = tf.nest.flatten(model(image, training=False))
        return {"probabilities": probabilities}

    return forward


def _savedmodel(function: Any, model: Any, said: Mapping[str, Any], path: Path, compare: Compare) -> float:
    import tensorflow as tf

    module = tf.Module()
    module.model, module.forward = model, function
    with reported_writes(path), new_directory(path) as partial:
        tf.saved_model.save(module, str(partial), signatures={"serving_default": function})
        make_folder(partial / "assets.extra")
        (partial / "assets.extra" / "model.json").write_text(json.dumps(said, indent=2), encoding="utf-8")
        run = tf.saved_model.load(str(partial)).signatures["serving_default"]
        return compare(function, lambda image: run(image=tf.constant(image))["probabilities"].numpy())


def _onnx(function: Any, model: Any, said: Mapping[str, Any], path: Path, compare: Compare) -> float:
    import onnx
    import onnxruntime
    import tf2onnx

    converted, _ = tf2onnx.convert.from_function(function, input_signature=function.input_signature, opset=_OPSET)
    onnx.helper.set_model_props(converted, {"lms3d": json.dumps(said)})
    with replacing(path) as partial:
        onnx.save(converted, str(partial))
        session = onnxruntime.InferenceSession(str(partial), providers=["CPUExecutionProvider"])
        return compare(function, lambda image: session.run(["probabilities"], {"image": image})[0])


def _compared(path: Path, image: np.ndarray, function: Any, run: Run) -> float:
    """The largest difference between two forms of a network on a sample, (1, *shape, channels) (EXPORT-2)."""
    difference = float(np.abs(run(image) - function(image)["probabilities"].numpy()).max())
    if not difference <= _ALLOWED:
        raise InputError(
            f"{path}: found probabilities that differ from the network's by {difference:.1e}; expected at most {_ALLOWED}; nothing "
            "was written; use the package itself, and report this network"
        )
    return difference


_WRITERS: Mapping[str, Callable[[Any, Any, Mapping[str, Any], Path, Compare], float]] = {
    "savedmodel": _savedmodel,
    "onnx": _onnx,
}
_NEEDS: Mapping[str, tuple[str, ...]] = {"savedmodel": (), "onnx": ("onnx", "onnxruntime", "tf2onnx")}
FORMS = tuple(_WRITERS)
