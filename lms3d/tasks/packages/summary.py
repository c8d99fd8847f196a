"""The summary that `lms3d.package` prints: the content of the file, its size, and how to use it."""

from __future__ import annotations

from pathlib import Path

from lms3d.tasks.packages.archive import Content
from lms3d.units import format_size


def summary(content: Content, path: Path) -> tuple[str, dict[str, str]]:
    """The title and the rows. path: the package, which has been written."""
    model = content.model
    network, origin, said = model["network"], model["provenance"], model["meaning"]
    rows = {"network": f"{model['options']['model']}, {_by(network['input_shape'])} -> {', '.join(said['outputs'])}"}
    if "labels" in said:
        values = ", ".join(f"{name} {value}" for name, value in said["labels"]["labels"].items())
        rows["labels"] = f"{said['labels']['name']}: {values}"
    rows["weights"] = f"{sum(array.size for array in content.weights):,} numbers in {len(content.weights)} arrays"
    if origin["best"]:
        scores = "  ".join(f"{name} {value:.3f}" for name, value in origin["best"].items() if name.startswith("val_"))
        rows["best epoch"] = f"{origin['best']['epoch']} of {origin['best']['epochs']}, {scores}"
    rows["size"] = format_size(path.stat().st_size)
    rows["to use it"] = f"python -m lms3d.predict {path} --data FOLDER"
    return f"packaged: {path}", rows


def _by(shape: list[int]) -> str:
    return "x".join(map(str, shape))
