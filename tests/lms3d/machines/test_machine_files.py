"""Our machine files are complete, a user's file works, and each wrong file ends in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lms3d.errors import InputError
from lms3d.machines import machine_files
from lms3d.machines.model import MachineModel


def own(folder: Path, **changes: object) -> Path:
    """A user's file: that of AC922 with other entries; None leaves one out."""
    content = json.loads((Path(machine_files.__file__).parent / "ac922.json").read_text()) | changes
    path = folder / "mine.json"
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))
    return path


def test_the_machines_of_the_case_study_and_newer_ones_come_along():
    assert set(machine_files.names()) == {
        "ac922", "ac922-6", "gh200", "h100-pcie", "h100-sxm", "h200-sxm", "v100-pcie-16gb", "v100-pcie-32gb"
    }  # fmt: skip
    assert [machine_files.load(name).name for name in machine_files.names()] == machine_files.names()


@pytest.mark.parametrize("name", machine_files.names())
def test_every_number_has_a_source(name):
    numbers = machine_files.load(name).numbers()
    assert len(numbers) >= 12
    assert all(len(number.source) > 3 for number in numbers.values())


def test_pairs_share_a_bus_only_where_the_case_study_says_so():
    shared = {name: machine_files.load(name).devices_per_link.value for name in machine_files.names()}
    assert {name for name, devices in shared.items() if devices > 1} == {"v100-pcie-16gb", "v100-pcie-32gb"}


def test_a_file_of_ones_own(tmp_path):
    mine = machine_files.load(str(own(tmp_path, title="Mine", memory_bytes={"value": 1 << 30, "source": "sheet"})))
    assert isinstance(mine, MachineModel)
    assert (mine.name, mine.title, mine.limit_bytes) == ("mine", "Mine", 1 << 30)
    assert (
        machine_files.load(str(own(tmp_path, link_latency_seconds={"value": 0, "source": "none"})))
        .speeds()
        .node_seconds
        == 0
    )


WRONG = {
    "no title": ({"title": None}, "title: found None; expected a line of text"),
    "a title of two lines": ({"title": "a\nb"}, "title: found"),
    "a field too few": ({"memory_bytes": None}, "memory_bytes is missing"),
    "a field too many": ({"colour": 1}, "'colour' is no field of a machine; expected devices, "),
    "a bare number": ({"op_seconds": 1e-5}, 'op_seconds: found 1e-05; expected {"value": a number, "source"'),
    "no source": ({"op_seconds": {"value": 1e-5}}, "op_seconds: found {'value': 1e-05}; expected"),
    "an empty source": ({"op_seconds": {"value": 1e-5, "source": " "}}, "op_seconds: found the source ' '"),
    "a source of two lines": ({"op_seconds": {"value": 1, "source": "a\nb"}}, "op_seconds: found the source 'a"),
    "a source that is no text": ({"op_seconds": {"value": 1e-5, "source": 7}}, "op_seconds: found the source 7"),
    "text": ({"op_seconds": {"value": "1", "source": "x"}}, "op_seconds: found '1'; expected a number above 0"),
    "true": ({"op_seconds": {"value": True, "source": "x"}}, "op_seconds: found True"),
    "zero": ({"memory_bytes_per_second": {"value": 0, "source": "x"}}, "found 0; expected a number above 0"),
    "negative": ({"link_latency_seconds": {"value": -1, "source": "x"}}, "link_latency_seconds: found -1"),
    "infinite": ({"op_seconds": {"value": float("inf"), "source": "x"}}, "op_seconds: found inf"),
    "not a number": ({"op_seconds": {"value": float("nan"), "source": "x"}}, "op_seconds: found nan"),
    "half a device": ({"devices": {"value": 1.5, "source": "x"}}, "devices: found 1.5; expected a whole number of 1"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_file_ends_in_one_line(kind, tmp_path):
    changes, words = WRONG[kind]
    path = own(tmp_path, **changes)
    with pytest.raises(InputError) as found:
        machine_files.load(str(path))
    assert words in str(found.value)
    assert str(found.value).startswith(f"--machine {path}: ")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1]", "holds a list"),
        ("{", "is no JSON"),
        ("[" * 2000, "is no JSON"),
        ("\x00", "is no JSON"),
        ("", "is no JSON"),
    ],
)
def test_what_is_no_object(text, words, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        machine_files.load(str(path))


def test_no_such_machine(tmp_path):
    with pytest.raises(InputError, match=r"--machine a100: expected here, ac922, .* or the path of a \.json file"):
        machine_files.load("a100")
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(InputError, match="--machine"):
            machine_files.load(str(path))
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(InputError, match="Is a directory"):
        machine_files.load(str(tmp_path / "folder.json"))
