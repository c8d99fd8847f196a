"""A trained network in a form that other programs run: a SavedModel or an ONNX file, without lms3d and without its own operations.

The network takes one normalised sample, "image" (1, *shape, channels) float32, and returns "probabilities". Beside it stands
model.json (`lms3d.tasks.packages.description`), which says how to normalise and what the outputs mean: in a SavedModel as
assets.extra/model.json, in an ONNX file as the property "lms3d".

EXPORT-1 It computes in float32, whatever the precision of the training: not every runtime has convolutions in half precision.
EXPORT-2 Nothing is written unless the file, read again, says what the network says of a sample of random numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.atomic_files import make_folder, replacing, writable_folder
from lms3d.data.files import new_directory, reported_writes
from lms3d.errors import InputError
from lms3d.tasks.packages import archive, package

_OPSET = 18
_ALLOWED = 1e-3
"""The largest difference in a probability. The order of sums differs, and so do kernels."""

Run = Callable[[np.ndarray], np.ndarray]


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


def export(source: Path, form: str, path: Path) -> tuple[str, dict[str, str]]:
    """Writes the network of a run, or of a package. Returns the title and the rows of the summary; TensorFlow must be running."""
    from lms3d.models import fused

    content = archive.read(source) if source.is_file() else package.make(source)
    said = content.model
    with fused.plain():  # the fused operations are lms3d's own
        model = package.opened(content, source).load(precision="float32")
        function = _function(model, said["network"]["input_shape"])
        difference = _WRITERS[form](function, model, said, path)
    return f"exported: {path}", {
        "input": f"image, {'x'.join(map(str, (1, *said['network']['input_shape'])))}, normalised as model.json says",
        "output": f"probabilities: {', '.join(said['meaning']['outputs'])}",
        "compared": f"on random numbers with the network itself: at most {difference:.1e} apart",
    }


def _function(model: Any, shape: list[int]) -> Any:
    import tensorflow as tf

    spec = tf.TensorSpec((1, *shape), tf.float32, name="image")

    @tf.function(input_signature=[spec], autograph=False, jit_compile=False)
    def forward(image: Any) -> dict[str, Any]:
        (probabilities,) = tf.nest.flatten(model(image, training=False))
        return {"probabilities": probabilities}

    return forward


def _savedmodel(function: Any, model: Any, said: Mapping[str, Any], path: Path) -> float:
    import tensorflow as tf

    module = tf.Module()
    module.model, module.forward = model, function
    with reported_writes(path), new_directory(path) as partial:
        tf.saved_model.save(module, str(partial), signatures={"serving_default": function})
        make_folder(partial / "assets.extra")
        (partial / "assets.extra" / "model.json").write_text(json.dumps(said, indent=2), encoding="utf-8")
        run = tf.saved_model.load(str(partial)).signatures["serving_default"]
        return _compared(function, lambda image: run(image=tf.constant(image))["probabilities"].numpy(), path)


def _onnx(function: Any, model: Any, said: Mapping[str, Any], path: Path) -> float:
    import onnx
    import onnxruntime
    import tf2onnx

    converted, _ = tf2onnx.convert.from_function(function, input_signature=function.input_signature, opset=_OPSET)
    onnx.helper.set_model_props(converted, {"lms3d": json.dumps(said)})
    with replacing(path) as partial:
        onnx.save(converted, str(partial))
        session = onnxruntime.InferenceSession(str(partial), providers=["CPUExecutionProvider"])
        return _compared(function, lambda image: session.run(["probabilities"], {"image": image})[0], path)


def _compared(function: Any, run: Run, path: Path) -> float:
    """The largest difference between two forms of a network, on a sample of random numbers (EXPORT-2)."""
    image = np.random.default_rng(0).normal(size=function.input_signature[0].shape).astype(np.float32)
    difference = float(np.abs(run(image) - function(image)["probabilities"].numpy()).max())
    if not difference <= _ALLOWED:
        raise InputError(
            f"{path}: found probabilities that differ from the network's by {difference:.1e}; expected at most {_ALLOWED}; nothing "
            "was written; use the package itself, and report this network"
        )
    return difference


_WRITERS: Mapping[str, Callable[[Any, Any, Mapping[str, Any], Path], float]] = {
    "savedmodel": _savedmodel,
    "onnx": _onnx,
}
_NEEDS: Mapping[str, tuple[str, ...]] = {"savedmodel": (), "onnx": ("onnx", "onnxruntime", "tf2onnx")}
FORMS = tuple(_WRITERS)
