"""The circumstances that bits depend on are read as they are in effect, and ranks must agree in them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import tensorflow as tf

from lms3d.device import circumstances
from lms3d.errors import InputError
from lms3d.ranks import messages

INTEL = """\
processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 207
model name\t: Intel(R) Xeon(R) Processor
flags\t\t: fpu sse4_1 avx avx2 avx512bw avx512_vnni

processor\t: 1
vendor_id\t: AuthenticAMD
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"


class Ranks:
    """The world of rank 0, beside a rank with other circumstances."""

    size, is_chief = 2, True

    def __init__(self, **other: object) -> None:
        self.other = other

    def from_chief(self, make):
        return make()

    def everyone(self, mine: circumstances.Circumstances) -> list[circumstances.Circumstances]:
        return [mine, replace(messages.unpacked(messages.packed(mine)), **self.other)]


@pytest.fixture(autouse=True)
def unlimited(monkeypatch):
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "ONEDNN_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("table", "expected"),
    [(INTEL, ("GenuineIntel 6 207", "AVX512_CORE_VNNI")), (ARM, ("0x41 0xd0c", "NEON"))],
    ids=["Intel", "Arm"],
)
def test_the_processor_is_that_of_the_first_core(tmp_path, table, expected):
    path = tmp_path / "cpuinfo"
    path.write_text(table)
    assert circumstances.of_processor(path) == expected
    assert circumstances.of_processor(tmp_path / "absent")[1] == ""


def test_threads_are_those_that_tensorflow_has(monkeypatch):
    asked = tf.config.threading.get_intra_op_parallelism_threads()
    if not asked:
        assert circumstances.threads() == len(os.sched_getaffinity(0))
        monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "7")
        assert circumstances.threads() == 7
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: 3)
    assert circumstances.threads() == 3


def test_edited_code_has_another_hash(tmp_path, monkeypatch):
    tree(tmp_path, "lms3d/__init__.py", "lms3d/a.py")
    monkeypatch.setattr(circumstances, "ROOT", tmp_path)
    before = circumstances.sources.__wrapped__()
    assert circumstances.sources.__wrapped__() == before
    (tmp_path / "lms3d" / "a.py").write_text("a = 2\n")
    assert circumstances.sources.__wrapped__() != before
    assert circumstances.commit.__wrapped__() == ""  # no checkout


def tree(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_only_code_is_hashed(tmp_path, monkeypatch):
    code = {"data/__init__.py", "data/a.py", "data/brats/__init__.py", "lms3d/__init__.py"}
    native = {"lms3d/native/__init__.py", "lms3d/native/src/a.cc"}
    tree(tmp_path, *code, *native, "data/scans/a.py", "lms3d/native/build/a.cc", "data/brats/notes.txt")
    (tmp_path / "data" / "folder.py").mkdir()
    (tmp_path / "data" / ".#a.py").symlink_to("nobody@nowhere.1")
    (tmp_path / "data" / "circle").symlink_to(".")
    monkeypatch.setattr(circumstances, "ROOT", tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in circumstances._code()} == code | native
    before = circumstances.sources.__wrapped__()
    monkeypatch.setattr(Path, "read_bytes", lambda self: os.stat(tmp_path / "absent"))  # as if all were unreadable
    assert circumstances.sources.__wrapped__() != before


def test_all_code_of_this_tree_is_hashed():
    code = [path for folder in circumstances._packages() for path in folder.rglob("*")]
    assert set(circumstances._code()) == {path for path in code if path.suffix in circumstances._ENDINGS}


def test_the_commit_is_that_of_git(tmp_path, monkeypatch):
    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
        return subprocess.run(
            ["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    git("init", "-q", "whole")
    git("-C", "whole", "commit", "-q", "--allow-empty", "-m", "first")
    git("-C", "whole", "worktree", "add", "-q", "../second")
    expected = git("-C", "whole", "rev-parse", "HEAD").strip()
    for prepare in ((), ("pack-refs", "--all"), ("checkout", "-q", "--detach")):
        if prepare:
            git("-C", "whole", *prepare)
        for name in ("whole", "second"):
            monkeypatch.setattr(circumstances, "ROOT", tmp_path / name)
            assert circumstances.commit.__wrapped__() == expected


def test_variables_that_choose_kernels_are_kept(monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    found = circumstances.here()
    assert "ONEDNN_MAX_CPU_ISA=AVX2" in found.variables.split()
    assert all(isinstance(value, str | int) for value in asdict(found).values())


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (
            {"threads": 99},
            r"rank 1 uses another number of threads per operation than rank 0: found 99, expected \d+; let nothing use",
        ),
        ({"operations": 99}, "operations side by side"),
        ({"variables": "TF_ENABLE_ONEDNN_OPTS=0"}, "the same environment"),
        ({"sources": "other"}, "rank 1 runs other code than rank 0: found other, expected"),
        (
            {"libraries": "tensorflow 2.20.0"},
            r"found tensorflow 2.20.0, expected tensorflow 2.*, keras 3.*, numpy .*, python 3.\d+;",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_ranks_that_could_be_alike_must_be(other, told):
    with pytest.raises(InputError, match=told) as error:
        circumstances.require_alike(Ranks(**other))
    assert "\n" not in str(error.value)


def test_other_processors_are_told_of(capsys):
    circumstances.require_alike(Ranks(processor="AuthenticAMD 25 1", instructions="AVX2"))
    assert capsys.readouterr().out.count("Rank 1 computes on AuthenticAMD 25 1, rank 0 on") == 1


def test_an_elastic_job_tells_of_differences_and_goes_on(capsys):
    circumstances.require_alike(Ranks(sources="other", libraries="others"), restarted=True)
    told = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in told] == [
        "Rank 1 computes with other libraries than rank 0", "Rank 1 runs other code than rank 0",
    ]  # fmt: skip
    assert all(line.endswith("training goes on all the same") for line in told)


def test_threads_and_processors_do_not_count_where_gpus_compute(capsys, monkeypatch):
    monkeypatch.setattr(circumstances.memory, "gpu_name", lambda: "H100")
    circumstances.require_alike(Ranks(threads=99, processor="another"))
    assert capsys.readouterr().out == ""
    circumstances.require_alike(Ranks(card="A100"))
    assert capsys.readouterr().out.startswith("Rank 1 computes on A100, rank 0 on H100")


def test_machines_and_checkouts_may_differ(capsys):
    circumstances.require_alike(Ranks(boot="another", commit="another"))
    assert capsys.readouterr().out == ""
