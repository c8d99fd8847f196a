"""Which tests are slow, in which order files come, and how that is recorded."""

import json
from types import SimpleNamespace

import pytest

from tests import durations
from tests.conftest import RECORD, pytest_collection_modifyitems, pytest_terminal_summary

KNOWN = {
    "data/test_long.py": {"test_a": 70.0, "test_b": 1.0, durations.REST: 9.0},
    "data/test_short.py": {durations.REST: 2.0},
    "lms3d/test_middle.py": {"test_c": 20.5},
}


class Item:
    def __init__(self, name: str) -> None:
        self.nodeid, self.marks = f"tests/{name}", []

    def add_marker(self, mark) -> None:
        self.marks.append(mark.name)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The record of a folder of tests that holds the files of KNOWN."""
    for name in KNOWN:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(durations, "FILE", tmp_path / "durations.json")
    durations.FILE.write_text(json.dumps(KNOWN))
    return durations.FILE


NAMES = [
    "data/test_new.py::test_x",
    "data/test_short.py::test_y",
    "data/test_long.py::test_a[1-b]",
    "data/test_long.py::test_ab",
    "integration/test_new.py::test_z",
    "lms3d/test_middle.py::test_c",
]


def test_slow_tests_and_whole_commands_are_marked(file):
    items = [Item(name) for name in NAMES]
    pytest_collection_modifyitems(SimpleNamespace(), items)
    assert [item.nodeid for item in items] == [f"tests/{name}" for name in NAMES]
    assert [item.marks for item in items] == [[], [], ["slow"], [], ["slow"], ["slow"]]


def test_all_tests_of_a_file_wait_for_what_they_share(file):
    durations.record([("tests/data/test_short.py::test_y", "setup", 9.0)])
    assert durations.is_slow(durations.recorded(), "tests/data/test_short.py::test_z")
    assert not durations.is_slow(durations.recorded(), "tests/data/test_long.py::test_z")
    durations.record([("tests/data/test_short.py::test_y", "setup", 0.9)])
    assert not durations.is_slow(durations.recorded(), "tests/data/test_short.py::test_z")


def test_workers_begin_with_the_longest_files(file):
    items = [Item(name) for name in NAMES]
    pytest_collection_modifyitems(SimpleNamespace(workerinput={}), items)
    assert [NAMES.index(item.nodeid.removeprefix("tests/")) for item in items] == [
        2,
        3,
        5,
        1,
        0,
        4,
    ]  # files stay together


def test_what_a_run_took_replaces_what_its_tests_took_before(file):
    taken = [
        ("tests/data/test_long.py::test_a[1]", "call", 2.0), ("tests/data/test_long.py::test_a[2]", "setup", 3.04),
        ("tests/data/test_long.py::test_e", "call", 0.7), ("tests/data/test_long.py::test_f", "call", 0.6),
        ("tests/test_gone.py::test_g", "call", 7.0), ("tests/data/test_short.py::test_y", "call", 0.2),
    ]  # fmt: skip
    durations.record(taken)
    assert durations.recorded() == {
        "data/test_long.py": {"test_a": 2.0, "test_b": 1.0, durations.REST: 1.3, durations.SHARED: 3.0},
        "lms3d/test_middle.py": {"test_c": 20.5},
    }


@pytest.mark.parametrize("asked", [True, False])
def test_only_a_run_that_is_asked_to_records(file, asked):
    lines: list[str] = []
    options = SimpleNamespace(option=SimpleNamespace(durations=1), getoption=lambda name: asked and name == RECORD)
    reports = [
        pytest.TestReport(
            f"tests/data/test_short.py::{test}", ("", None, ""), {}, "passed", None, "call", duration=seconds
        )
        for test, seconds in (("test_y", 4.0), ("test_z", 2.0))
    ]
    terminal = SimpleNamespace(stats={"passed": reports}, section=lines.append, write_line=lines.append)
    pytest_terminal_summary(terminal, options)
    assert lines == ["slowest 1 files, of 6s together", "6.00s tests/data/test_short.py"]
    assert (durations.recorded() != KNOWN) == asked


def test_recorded_tests_are_there():
    for name, tests in durations.recorded().items():
        text = (durations.FILE.parent / name).read_text()
        missing = [
            test
            for test in tests
            if test not in (durations.REST, durations.SHARED) and f"def {test.split('::')[-1]}(" not in text
        ]
        assert not missing, (name, missing)
