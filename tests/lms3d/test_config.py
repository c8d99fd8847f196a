import dataclasses
import json
from pathlib import Path

import pytest

from lms3d import config
from lms3d.errors import InputError
from lms3d.tasks.brats.options import BratsConfig

OPTIONS = BratsConfig(data=Path("/data"), serialization=(3, "5:8"), memory_limit=2**30)


def test_json_round_trip():
    assert BratsConfig.from_json(json.loads(json.dumps(OPTIONS.to_json()))) == OPTIONS


@pytest.mark.parametrize(("option", "then"), [("slabs", "off"), ("normalisation", "global"), ("anti_alias", False)])
def test_a_run_that_is_older_than_an_option(option, then):
    before = {name: value for name, value in OPTIONS.to_json().items() if name != option}
    assert BratsConfig.from_json(before) == dataclasses.replace(OPTIONS, **{option: then})


def test_unknown_option():
    with pytest.raises(InputError, match="colour"):
        BratsConfig.from_json({**OPTIONS.to_json(), "colour": 1})


@pytest.mark.parametrize(
    ("name", "value"), [("box", [16, 16]), ("distort", "all"), ("n4", 1), ("stages", [[16]]), ("resolution", 1 << 40)]
)
def test_values_that_no_run_has(name, value):
    with pytest.raises(ValueError, match=r"found "):
        BratsConfig.from_json({**OPTIONS.to_json(), name: value})


@pytest.mark.parametrize(
    ("given", "sample", "text", "folder"),
    [
        ({"resolution": 192}, (192, 192, 192), "192^3", "unet3d-192"),
        ({"box": (160, 192, 144)}, (160, 192, 144), "160x192x144", "unet3d-160x192x144"),
        ({"resolution": 192, "patch": 128}, (128, 128, 128), "128^3 of 192^3", "unet3d-192-patch128"),
    ],
)
def test_the_size_of_a_step(given, sample, text, folder):
    options = BratsConfig(model="unet3d", **given)
    assert (options.sample_shape(), options.size_text(), options.folder_name()) == (sample, text, folder)


def test_an_option_of_its_own_is_known_as_such():
    own = BratsConfig.own()
    assert "box" in own
    assert "memory_limit" not in own
    assert config.flag("start_from") == "--start-from"
