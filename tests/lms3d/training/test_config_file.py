import dataclasses
import json
from pathlib import Path

import pytest

from lms3d import tasks
from lms3d.errors import InputError
from lms3d.tasks.brats.options import BratsConfig
from lms3d.tasks.chexnet.options import ChexnetConfig
from lms3d.training import config_file

OPTIONS = BratsConfig(data=Path("/data"), serialization=(3, "5:8"), memory_limit=2**30)


def test_resume_takes_what_does_not_change_the_result():
    resumed = config_file.resumed(OPTIONS, {"epochs": 9, "lms": False, "seed": 0}, Path("run"))
    assert resumed == dataclasses.replace(OPTIONS, epochs=9, lms=False)


@pytest.mark.parametrize(
    ("name", "value"), [("resolution", 64), ("seed", 1), ("learning_rate", 1e-3), ("slabs", "8/4"), ("n4", True)]
)
def test_resume_refuses_what_changes_the_result(name, value):
    option = "--" + name.replace("_", "-")
    with pytest.raises(InputError, match=f"{option} {value} differs"):
        config_file.resumed(OPTIONS, {name: value}, Path("run"))


def test_resume_refuses_an_option_of_another_task():
    with pytest.raises(InputError, match="--n4 is not for --task chexnet"):
        config_file.resumed(ChexnetConfig(), {"n4": False}, Path("run"))


def test_load(tmp_path):
    with pytest.raises(InputError, match="not a run folder"):
        tasks.load(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="Not a directory; give the folder of a run"):
        tasks.load(tmp_path / "file")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        tasks.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"options": OPTIONS.to_json(), "more": 1}))
    assert tasks.load(tmp_path) == (OPTIONS, {"options": OPTIONS.to_json(), "more": 1})


def test_a_run_of_an_earlier_version_lists_the_options_of_all_tasks(tmp_path):
    """Options of other tasks had their defaults, since giving them was refused."""
    options = ChexnetConfig(resolution=64)
    listed = {**BratsConfig().to_json(), **options.to_json()}
    (tmp_path / "config.json").write_text(json.dumps({"options": listed}))
    assert tasks.load(tmp_path)[0] == options


def test_a_run_from_before_there_were_tasks(tmp_path):
    values = {name: value for name, value in OPTIONS.to_json().items() if name != "task"}
    (tmp_path / "config.json").write_text(json.dumps({"options": values}))
    assert tasks.load(tmp_path)[0] == OPTIONS
