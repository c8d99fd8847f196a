"""The limit of cuDNN's workspace is chosen from the memory limit and the measurements, and set before the first convolution."""

import contextlib
import json
import os
import subprocess

import pytest

from lms3d import doctor, plan, predict
from lms3d.cli import workspace as size
from lms3d.device import examination, memory, startup, workspace
from lms3d.device.workspace import VARIABLE, workspace_limit_bytes
from lms3d.engine.passes import workspace_probe
from lms3d.errors import InputError
from lms3d.keras_step.callback import LMS
from lms3d.keras_step.estimate import estimate
from lms3d.ranks.world import World
from lms3d.tasks import inference
from lms3d.tasks.brats.options import BratsConfig
from lms3d.training import run_folder, session
from tests.lms3d.keras_step.test_slabs import SPEC, network

MIB, GIB = 1 << 20, 1 << 30
CARD = "NVIDIA H200"
TABLE = {64: 0.40, 256: 0.35, 1024: 0.24, 2048: 0.237, 4096: 0.23}


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch, own_cache):
    monkeypatch.setenv(VARIABLE, "")  # so that a test's setting is undone
    monkeypatch.delenv(VARIABLE)


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(memory, "gpu_name", lambda: CARD)


@pytest.mark.parametrize(
    ("limit", "expected"), [(100 * MIB, 128 * MIB), (4500 * MIB, 256 * MIB), (5 * GIB, 256 * MIB), (141 * GIB, 4 * GIB)]
)
def test_a_sixteenth_of_the_limit_as_a_power_of_two(limit, expected):
    assert workspace_limit_bytes(limit) == expected


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (64 * GIB, 4096),  # the best of all
        (32 * GIB, 1024),  # 2048 is 1 % faster, which is not worth it
        (8 * GIB, 256),
        (300 * MIB, 64),  # all that are up to 128 MiB
    ],
)
def test_the_smallest_measured_limit_that_is_as_fast_as_the_best_that_is_possible(limit, expected):
    assert workspace_limit_bytes(limit, TABLE) == expected * MIB


def test_limits_that_are_all_too_large_leave_the_share():
    assert workspace_limit_bytes(4 * GIB, {1024: 0.1}) == 256 * MIB


def test_what_was_measured_counts_for_its_card_alone(monkeypatch):
    workspace.keep(CARD, TABLE)
    workspace.keep("another", {64: 1.0})
    assert workspace.measured(CARD) == TABLE
    assert workspace.measured("NVIDIA H100") == {}
    workspace.put_in_force(32 * GIB, CARD)
    assert workspace.in_force() == GIB
    monkeypatch.setattr(workspace.machine, "nvidia_driver", lambda: "999.1")
    assert workspace.measured(CARD) == {}


@pytest.mark.parametrize("content", ["{", "[]", '{"KEY": 3}', '{"KEY": {"a": 1}}', '{"KEY": {"64": -1}}'])
def test_a_damaged_table_counts_as_none(own_cache, content):
    own_cache.mkdir(exist_ok=True)
    (own_cache / "workspaces.json").write_text(content.replace("KEY", workspace._key(CARD)))
    assert workspace.measured(CARD) == {}


def test_what_the_user_has_set_stays(monkeypatch):
    monkeypatch.setenv(VARIABLE, "77")
    workspace.put_in_force(8 * GIB, CARD)
    assert workspace.in_force() == 77 * MIB


def test_a_processor_is_left_alone(capsys):
    workspace.put_in_force(8 * GIB, None)
    startup._limit_workspace(GIB, None)
    assert VARIABLE not in os.environ
    assert "no GPU here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "planned", "expected"),
    [(None, None, 128 * MIB), (None, 8 * GIB, 512 * MIB), (96 * MIB, 8 * GIB, 96 * MIB)],
)
def test_every_command_sets_it_when_it_starts(gpu, monkeypatch, asked, planned, expected):
    monkeypatch.setattr(memory, "device_memory_bytes", lambda: 2 * GIB)
    monkeypatch.setattr(startup, "_make_devices", lambda *_, **__: None)
    monkeypatch.setattr(World, "devices_exist", lambda self: None)
    startup.start_tensorflow(cudnn_workspace_bytes=asked, planned_limit_bytes=planned)
    assert workspace.in_force() == expected


def test_training_prediction_and_planning_pass_their_option_on(monkeypatch):
    starts: list[dict] = []
    monkeypatch.setattr(startup, "start_tensorflow", lambda **options: starts.append(options))
    options = BratsConfig(cudnn_workspace=3 * MIB, memory_limit=GIB)
    session._start_tensorflow(options, World())
    with contextlib.suppress(ZeroDivisionError):
        inference.network(lambda: 1 / 0, options, lms=False, limit_bytes=None).__enter__()
    with contextlib.suppress(ZeroDivisionError):
        inference.network(lambda: 1 / 0, options, lms=False, limit_bytes=None, workspace_bytes=4 * MIB).__enter__()
    plan._start_tensorflow(options, "float32")
    assert [start["cudnn_workspace_bytes"] for start in starts] == [3 * MIB, 3 * MIB, 4 * MIB, 3 * MIB]
    assert starts[-1]["planned_limit_bytes"] == GIB


def test_a_run_says_what_it_had(gpu, tmp_path):
    workspace.put_in_force(8 * GIB, CARD)
    run_folder.describe(tmp_path, BratsConfig(), [], resuming=False, device="GPU:0", limit_bytes=8 * GIB)
    assert json.loads((tmp_path / "config.json").read_text())["cudnn_workspace_bytes"] == 512 * MIB


@pytest.mark.parametrize("enabled", [True, False])
def test_lms_sets_it_where_nobody_has(gpu, enabled):
    LMS(memory_limit="8GiB", enabled=enabled)._get_runner()
    assert workspace.in_force() == 512 * MIB


def test_so_does_a_plan(gpu):
    estimate(network(), SPEC, memory_limit="8GiB")
    assert workspace.in_force() == 512 * MIB


def test_a_hard_limit_sets_it(commands):
    lines = [
        "import tensorflow as tf, lms3d, os",
        "from lms3d.device import memory",
        "memory.gpu_name = lambda: 'a card'",
        "tf.config.get_visible_devices = lambda kind: ['a GPU']",
        "tf.config.set_logical_device_configuration = lambda *_: None",
        "lms3d.limit_memory('2GiB')",
        f"print(os.environ['{VARIABLE}'])",
    ]
    done = commands.run(["-c", "\n".join(lines)])
    assert done.stdout == "128\n", done.stderr


def test_sizes_of_the_option():
    assert size("1.5GiB") == 1536 * MIB
    with pytest.raises(InputError, match="less than 1 MiB"):
        size("900KiB")
    assert predict._parser().parse_args(["run"]).cudnn_workspace is None


def test_a_child_measures_within_its_limit(monkeypatch):
    """On a processor, which has no such limit, this only shows that there is a number."""
    seconds = workspace_probe.measure((64,), side=16)
    assert 0 < seconds[64] < 60


def test_each_child_has_its_limit(monkeypatch):
    def run(command, *, env, **_):
        said = json.dumps({"seconds": TABLE[int(env[VARIABLE])]})
        return subprocess.CompletedProcess(command, 0, f"remarks\n{said}\n", "")

    heard = []
    monkeypatch.setattr(subprocess, "run", run)
    assert workspace_probe.measure(tuple(TABLE), report=lambda *pair: heard.append(pair)) == TABLE
    assert heard == list(TABLE.items())


def test_a_child_that_fails_ends_in_one_line(monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nOOM when allocating\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(InputError, match=r"within 64 MiB failed \(OOM when allocating\)"):
        workspace_probe.measure((64,))


def test_the_doctor_measures_only_on_a_gpu(capsys):
    assert doctor.main(["--workspaces"]) == 2
    assert "TensorFlow sees no GPU" in capsys.readouterr().err


def test_the_doctor_keeps_what_it_measures_and_says_so(gpu, monkeypatch, capsys):
    monkeypatch.setattr(workspace_probe, "measure", lambda report: report(64, 0.4) or TABLE)
    doctor._measure_workspaces()
    assert "within 64 MiB: 400 ms" in capsys.readouterr().out
    workspace.put_in_force(32 * GIB, CARD)
    (row,) = examination.cudnn_workspace(CARD).values()
    assert "at most 1.00 GiB" in str(row)
    assert "240 ms within 1024 MiB" in str(row)
