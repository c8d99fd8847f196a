"""The commands of the guides, in their order, really run: sizes and networks are small, and the data are artificial brains and
radiographs.

Left out are `make`, launchers (tests/lms3d/ranks and tests/deploy start them) and `plan --largest`.
"""

import os
import re
import shlex
import shutil
from pathlib import Path

import nibabel
import numpy as np
import pytest

from lms3d.data.phantoms import brains
from tests.caches import private_cache
from tests.data.small_radiographs import many, write_set

ROOT = Path(__file__).parents[2]
SMALLER = {
    "64": "32", "96": "16", "144": "16", "192": "32", "224": "32", "160x192x160": "32x32x32",
    "15GiB": "1GiB", "5.4GiB": "160MiB", "800MiB": "1GiB",
    "30": "1", "15": "1",
    "densenet121_imagenet.h5": "runs/chest/best.keras",
}  # fmt: skip
MORE = {
    "lms3d.train": ("--model unet3d", "--steps-per-epoch 1 --validation-steps 1 --epochs 1"),
    "lms3d.plan": ("--model unet3d", ""),
    "experiments.machine_models": ("", "--side 32 --only published"),
}
"""Command -> (options for 3D networks, options for all)."""


def lines(guide: str) -> list[list[str]]:
    """The words of each Python command in a guide's blocks of code; a quoted argument may span lines."""
    text = (ROOT / "docs" / guide).read_text()
    found, begun = [], ""
    for line in "\n".join(re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE)).splitlines():
        begun += line + "\n"
        if begun.count('"') % 2 == 0:
            found.append(begun)
            begun = ""
    left_out = ("--largest", "lms3d.launch")
    return [
        shlex.split(one, comments=True)
        for one in found
        if one.startswith("python ") and not any(word in one for word in left_out)
    ]


def _place(name: str, sets: dict[str, Path]) -> str:
    """The place of a folder in the user's home: a data set if it is read, below the working directory if it is written."""
    return name if name in ("segmented", "findings") else str(sets.get(name, sets[""]))


def small(words: list[str], sets: dict[str, Path]) -> list[str]:
    """The same command for this machine and a minute, without "python". sets: name of a folder in the guides -> data."""
    made = [
        SMALLER.get(word) or re.sub(r"^~/(\w+).*", lambda found: _place(found[1], sets), word) for word in words[1:]
    ]
    if "-c" in words:
        return [word.replace("192", "32") for word in made]
    volumes, always = MORE.get(words[2], ("", ""))
    made += [*always.split(), *([] if "chexnet" in words else volumes.split())]
    if "chexnet" in words:
        data = [] if "--data" in words else ["--data", str(sets["radiographs"])]
        made += ["--model", "resnet50", "--batch-size", "2", *data]
    return [f"{word}=2" if word == "--sweep" else word for word in made]


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    chests = write_set(folder / "chests", many(12))
    return {
        "": brains.write(folder / "set", cases=5, spacing_mm=8, workers=1),
        "ChestX": chests,
        "radiographs": chests,
    }


def between(folder: Path, data: Path, run) -> None:
    """Makes what scoring.md presupposes: another run, predictions of three folds, and label maps of another program."""
    shutil.copytree(folder / "runs/192", folder / "runs/144")
    for fold, truth in enumerate(sorted(data.rglob("*_seg.nii.gz"))[:3]):
        (folder / "cases.txt").write_text(truth.parent.name)
        where = ["--data", str(data), "--cases", "cases.txt", "--output", f"runs/fold{fold}"]
        run(["-m", "tests.small", "lms3d.predict", "runs/192", *where])
    (folder / "nnunet_output").mkdir()
    for truth in data.rglob("*_seg.nii.gz"):
        image = nibabel.load(truth)
        labels = np.asarray(image.dataobj).astype(np.uint8)
        labels[labels == 4] = 3
        name = truth.name.replace("_seg", "")
        nibabel.save(nibabel.Nifti1Image(labels, image.affine), folder / "nnunet_output" / name)


@pytest.mark.parametrize(
    ("guides", "leaves"),
    [
        (["first_results.md"], ["comparison/report.html", "comparison/dice_native.png", "segmented/native/*.nii.gz"]),
        (
            ["training.md", "scoring.md"],
            ["tumours-predictions", "findings/*.csv", "comparison/report.html", "to_upload/*.nii.gz"],
        ),
        (["machines.md"], ["machine-models/report.md"]),
    ],
)
def test_every_command_runs(guides, leaves, sets, tmp_path, commands):
    environment = {**os.environ, "LMS3D_CACHE": str(private_cache(tmp_path / "cache")), "PYTHONPATH": str(ROOT)}

    def run(line):
        done = commands.run(line, cwd=tmp_path, env=environment)
        assert done.returncode == 0, f"{shlex.join(line)}\n{done.stdout}{done.stderr}"

    for guide in guides:
        if guide == "scoring.md":
            between(tmp_path, sets[""], run)
        for words in lines(guide):
            line = small(words, sets)
            if line[1].startswith(("lms3d.", "experiments.machine_models")):
                line.insert(1, "tests.small")
            run(line)
    assert all(list(tmp_path.glob(name)) for name in leaves)


PRELUDE = """
import lms3d
{limit}
import keras, numpy as np, tensorflow as tf
model = keras.Sequential([keras.Input((8,)), *(keras.layers.Dense(8, activation="tanh") for _ in range(4))])
model.compile("adam", "mse", jit_compile=False)
batch = np.ones((2, 8), np.float32), np.ones((2, 8), np.float32)
dataset = tf.data.Dataset.from_tensors(batch).repeat(3)
"""


@pytest.mark.parametrize("guide", ["README.md", "docs/lms.md", "docs/from_tflms.md"])
def test_every_python_example_runs(guide, tmp_path, commands):
    """As they stand; the model and the data that they take for granted come between the limit and the rest."""
    examples = re.findall(r"^```python\n(.*?)^```", (ROOT / guide).read_text(), re.DOTALL | re.MULTILINE)
    lines = "".join(examples).splitlines()
    limit = next(line for line in lines if "limit_memory" in line)
    script = PRELUDE.format(limit=limit) + "\n".join(line for line in lines if line != limit)
    environment = {**os.environ, "LMS3D_CACHE": str(private_cache(tmp_path / "cache")), "PYTHONPATH": str(ROOT)}
    done = commands.run(["-c", script], cwd=tmp_path, env=environment)
    assert done.returncode == 0, f"{script}\n{done.stderr}"
