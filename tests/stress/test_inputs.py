"""A sample of the damaged inputs of `python -m tests.stress inputs`: each ends well, and what would not is noticed."""

import json
import os
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lms3d.data.errors import DataError
from tests.stress import damages
from tests.stress.inputs import Bench
from tests.stress.readers import READERS, Reader

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def benches(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benches")
    return {name: Bench(name, reader, folder / str(k)) for k, (name, reader) in enumerate(READERS.items())}


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_damaged_input_ends_well(benches, name, seed, tmp_path_factory):
    os.chdir(tmp_path_factory.getbasetemp())  # code of a pickle would leave its mark there
    try:
        found = benches[name].run(seed)
    finally:
        os.chdir(ROOT)
    assert not found.wrong


def only(path: Path) -> bytes:
    return (path / "a").read_bytes()


FAULTY = {
    "a traceback": (lambda folder: only(folder).decode("ascii"), "UnicodeDecodeError"),
    "a pickle": (lambda folder: np.load(folder / "a", allow_pickle=True).tolist(), "code in the file was run"),
    "other content": (lambda folder: only(folder) and 7, "other content came back"),
    "memory": (lambda folder: len(np.ones(50_000_000)) if b"\0" not in only(folder) else 1, "took"),
}


def refuse(folder: Path) -> str:
    if only(folder) != b"sound":
        raise DataError("found\nother content")
    return "sound"


@pytest.mark.parametrize("fault", FAULTY)
def test_what_does_not_end_well_is_noticed(tmp_path, monkeypatch, fault):
    monkeypatch.chdir(tmp_path)
    read, told = FAULTY[fault]
    content = {"a traceback": "é".encode(), "a pickle": damages.pickled(), "other content": b"", "memory": b"x"}[fault]
    monkeypatch.setattr("tests.stress.inputs.damage", lambda before, rng: (content, "by hand"))
    sound = Reader(make=lambda folder: (folder / "a").write_bytes(b"\0"), read=lambda folder: 0, sealed=True)
    bench = Bench("a", sound, tmp_path / "bench")
    bench.reader = Reader(make=sound.make, read=read, sealed=True)
    assert told in bench.run(0).wrong


def test_damage_follows_from_the_seed_and_damages():
    content = json.dumps({"a": [1, 2, {"b": "c"}]}).encode() * 20
    once, again = (damages.damage(content, Random(7)) for _ in range(2))
    assert once == again
    changed = [damages.damage(content, Random(seed))[0] != content for seed in range(50)]
    assert sum(changed) > 40


def test_a_case_of_the_command(tmp_path, commands):
    words = ["-m", "tests.stress", "inputs", "--only", "split.json", "--output", tmp_path, "--first", 3, "--inputs", 2]
    done = commands.run(words)
    assert done.returncode == 0, done.stderr
    assert "| inputs | split.json | 2 | 0 |" in done.stdout
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["case"] for line in lines] == ["3", "4"]
