"""`pip install` of this project brings all code and data of it, and works beside other projects, from any folder."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import lms3d
from lms3d.common import extras

ROOT = Path(__file__).parent.parent
ROOMS = {
    "lms3d": "lms3d",
    "data": "lms3d/data",
    "models": "lms3d/models",
    "experiments": "lms3d/experiments",
    "deploy": "lms3d/deploy",
}
"""Folder of the repository -> folder of the installation."""
WITHOUT_EXTRAS = f"""
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(extras.IMAGING)}:
            raise ModuleNotFoundError(name=name.partition(".")[0])

sys.meta_path.insert(0, Without())
"""
FIVE_LINES = """
import lms3d, numpy, keras
model = keras.Sequential([keras.layers.Input((8, 8, 1)), keras.layers.Conv2D(2, 3), keras.layers.Conv2D(1, 3)])
model.compile("sgd", "mse", jit_compile=False)
lms = lms3d.LMS()
model.fit(numpy.ones((2, 8, 8, 1)), numpy.ones((2, 4, 4, 1)), callbacks=[lms], verbose=0)
print(lms.plan is not None)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from the files that git knows, without links, as on a system that has none."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout, which says what belongs to it")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / "source" / name)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        folder,
        "./source",
    ]
    subprocess.run([*map(str, command)], cwd=folder, check=True, timeout=600)
    (made,) = folder.glob("lms3d-*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The `bin` of an environment with the wheel and the packages of this one, beside a project with packages of the same names."""
    folder = tmp_path_factory.mktemp("elsewhere")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/*/site-packages")
    for name in ("data", "models", "experiments"):
        (packages / name).mkdir()
        (packages / name / "__init__.py").write_text("mine = True")
    python = folder / "bin/python"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-compile",
        wheel,
    ]
    assert run(*pip, cwd=folder).returncode == 0
    (packages / "others.pth").write_text("\n".join([*site.getsitepackages(), *site.getusersitepackages().splitlines()]))
    return python.parent


def run(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
    return subprocess.run([*map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)


def test_it_has_all_code_and_the_source_of_the_native_library(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    for room, place in ROOMS.items():
        for path in (ROOT / room).rglob("*.py"):
            assert f"{place}/{path.relative_to(ROOT / room).as_posix()}" in inside
    sources = {p.relative_to(ROOT).as_posix() for p in (ROOT / "lms3d/engine/native/src").iterdir()}
    assert len(sources) > 10
    assert sources <= inside
    assert {"lms3d/py.typed", "lms3d/deploy/conda/README.md", "lms3d/deploy/rank.sh"} <= inside
    assert {name.split("/")[0].split("-")[0] for name in inside} == {"lms3d"}, "no other top-level package"


def test_networks_find_their_operations(wheel):
    (told,) = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("entry_points.txt")]
    written = zipfile.ZipFile(wheel).read(told).decode()
    assert "[models.operations]\nnative = lms3d.engine.native.kernels:operations" in written


def test_commands_work_in_any_folder_beside_packages_of_the_same_names(installed, tmp_path):
    for name in ("data.py", "models.py", "experiments.py"):
        (tmp_path / name).write_text("raise ImportError('this is not of lms3d')")
    assert run(installed / "lms3d", "--version", cwd=tmp_path).stdout == f"lms3d {lms3d.__version__}\n"
    for words in (["prepare", "--help"], ["train", "--version"], ["evaluate", "--help"]):
        done = run(installed / "lms3d", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(("usage: lms3d ", "lms3d "))
    done = run(installed / "python", "-m", "lms3d.data.prepare", "nothing", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing: found nothing; expected a folder" in done.stderr
    code = "import sys; sys.path.remove(''); import data, models, lms3d.data.split, lms3d.models"
    code += "; print(data.mine, models.mine)"
    assert run(installed / "python", "-c", code, cwd=tmp_path).stdout == "True True\n"
    code = "from importlib.metadata import version; print(version('lms3d'))"
    assert run(installed / "python", "-c", code, cwd=tmp_path).stdout == f"{lms3d.__version__}\n"


@pytest.mark.slow
def test_five_lines_of_keras_need_no_extra(installed, tmp_path):
    (packages,) = installed.parent.glob("lib/*/site-packages")
    hiding = (packages / "without_extras.py", packages / "without_extras.pth")  # Debian has a sitecustomize of its own
    for file, text in zip(hiding, (WITHOUT_EXTRAS, "import without_extras"), strict=True):
        file.write_text(text)
    try:
        done = run(installed / "python", "-c", FIVE_LINES, cwd=tmp_path)
        missing = run(installed / "lms3d", "prepare", "nothing", cwd=tmp_path)
        completion = run(installed / "lms3d", "completion", "bash", cwd=tmp_path)
    finally:
        for file in hiding:
            file.unlink()
    assert (done.returncode, done.stdout.split()) == (0, ["True"]), done.stderr
    assert (completion.returncode, "skip-bad" in completion.stdout) == (0, True), completion.stderr
    assert missing.returncode == 2
    assert missing.stderr.startswith("data.prepare: error: the package ")
    assert "is not installed; expected those of the extra `imaging`: pip install 'lms3d[imaging]'" in missing.stderr


def test_a_checkout_without_links_finds_its_folders(wheel, tmp_path):
    source = wheel.parent / "source"
    assert not (source / "lms3d/data").exists()
    assert run(sys.executable, "-m", "data.prepare", "--version", cwd=source).stdout == f"lms3d {lms3d.__version__}\n"
    code = "import lms3d.data.split as s; print(s.__file__)"
    assert run(sys.executable, "-c", code, cwd=source).stdout.strip() == str(source / "data/split.py")


def test_the_extra_imaging_is_what_pyproject_says():
    """Each of its packages has one name to be imported by."""
    import tomllib
    from importlib.metadata import packages_distributions

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["imaging"]
    names = {one.partition(">")[0].lower() for one in listed}
    known = packages_distributions()
    assert {name.lower() for module in extras.IMAGING for name in known[module]} & names == names
    assert len(extras.IMAGING) == len(names)
