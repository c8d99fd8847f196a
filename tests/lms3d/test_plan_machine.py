"""`python -m lms3d.plan --machine`: what a step would come to on a machine that is not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from lms3d import plan
from lms3d.device import workspace
from lms3d.engine.ir import StepGraph
from lms3d.engine.passes.pieces import CutFilterGradients
from lms3d.engine.prediction import Prediction
from lms3d.errors import DoesNotFit
from lms3d.machines import machine_files
from tests.caches import private_cache

MIB = 1 << 20


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = plan.main(arguments)
    return code, *capsys.readouterr()


def test_the_machines_are_named(capsys):
    code, out, err = run(capsys, "--list-machines")
    assert (code, err) == (0, "")
    assert all(name in out and machine_files.load(name).title in out for name in machine_files.names())
    assert "here" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--machine", "a100"), "--machine a100: expected here, ac922"),
        (("--machine", "none.json"), "--machine none.json: No such file"),
        (("--machine", "ac922", "--sweep"), "--sweep is not for --machine; leave it out"),
        (("--machine", "ac922", "--copied"), "--copied is not for --machine; leave it out"),
        (("--machine", "ac922", "--lms-compile", "auto"), "--lms-compile is not for --machine; leave it out"),
        (("--machine", "ac922", "--no-lms"), "--lms is not for --machine"),
        (("--machine", "ac922", "--sync-mode", "1"), "--sync-mode is not for --machine"),
        (("--machine", "ac922", "--keras-model", "x.keras"), "--keras-model is not for --machine"),
        (("--machine", "ac922", "--largest", "--resolution", "64"), "--resolution is not for --machine --largest"),
        (("--machine", "ac922", "--precision", "mixed_float16"), "--precision mixed_float16: the rates"),
        (("--machine", "ac922", "--largest", "--box", "32x32x32"), "--box is not for --machine --largest"),
        (("--largest",), "--largest asks about a machine; name one with --machine"),
        (("--machine", "ac922", "--resolution", "50"), "50 is not a multiple of 16"),
    ],
)
def test_what_does_not_go_together_is_one_line(arguments, words, capsys):
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_the_workspace_that_the_user_asks_for_is_that_of_the_plan(monkeypatch, capsys):
    from lms3d.engine.passes import forms

    limits: list[int] = []

    def cut(most_bytes: int) -> CutFilterGradients:
        limits.append(most_bytes)
        return CutFilterGradients(most_bytes)

    monkeypatch.setattr(forms, "CutFilterGradients", cut)
    monkeypatch.setenv(workspace.VARIABLE, "")  # so that the command's setting is undone
    monkeypatch.delenv(workspace.VARIABLE)
    place = ("--machine", "h200-sxm", "--resolution", "16", "--memory-limit", "1GiB")
    assert run(capsys, *place)[0] == 0
    assert set(limits) == {workspace.LEAST_BYTES}
    limits.clear()
    assert run(capsys, *place, "--cudnn-workspace", "2MiB")[0] == 0
    assert set(limits) == {2 * MIB}


@pytest.mark.parametrize("limit", [0, 15, 16, 31, 64, 79, 80, 200, 511, 1000, 4095])
def test_the_largest_multiple_of_16_that_fits(limit):
    from lms3d.plan_display import on_machine

    tried: list[int] = []

    def fits(side: int) -> bool:
        tried.append(side)
        return side <= limit

    assert on_machine.largest(fits) == limit // 16 * 16
    if limit >= 16:
        assert on_machine.largest(lambda side: side <= limit, known=16) == limit // 16 * 16
    assert len(tried) == len(set(tried)) <= 40
    assert all(side % 16 == 0 for side in tried)


def test_the_largest_cube_each_way(monkeypatch, capsys):
    """Peaks by the cube of the side: 1 without LMS, 1/8 with TFLMS's plan, 1/64 with ours; 1/128 lies there all the time."""
    from lms3d.plan_display import on_machine

    tried = []
    shares = {"off": 1, "tflms": 8, "auto": 64}

    @dataclass
    class Planned:
        prediction: Prediction
        graph: StepGraph

    def planned(options, where, planner, *, slabs=None, effort_seconds=None, at_floor=True):
        assert slabs == (None if planner == "auto" else "off")
        tried.append((planner, options.resolution))
        needed = options.resolution**3 // shares[planner]
        if needed > where.limit_bytes and not at_floor:
            raise DoesNotFit("too large")
        return Planned(
            Prediction(
                step="train", planner=planner, tier="host", limit_bytes=max(needed, where.limit_bytes), floor_bytes=None,
                unedited_peak_bytes=needed, predicted_peak_bytes=needed, unedited_limit_bytes=needed,
                unedited_step_seconds=1.0, predicted_step_seconds=1.0,
            ),
            StepGraph(ops=(), resident_bytes=options.resolution**3 // 128),
        )  # fmt: skip

    monkeypatch.setattr(on_machine, "_planned", planned)
    code, out, err = run(capsys, "--machine", "ac922", "--largest", "--memory-limit", str(64**3))
    assert (code, err) == (0, "")
    rows = {line.split("  ")[1].strip(): line.split()[-2:] for line in out.splitlines()[-3:]}
    assert rows == {"without LMS": ["64^3", "1.00"], "TFLMS": ["128^3", "8.00"], "lms3d": ["256^3", "64.00"]}
    assert len(tried) == len(set(tried))  # each side is traced once for all ways
    assert max(side for planner, side in tried if planner != "off") ** 3 <= 128 * 64**3


def test_of_images_it_is_a_square(monkeypatch, capsys):
    from lms3d.plan_display import on_machine

    words = ("--machine", "ac922", "--model", "resnet50", "--largest")
    monkeypatch.setattr(on_machine, "largest", lambda fits, known=0: 2 * known or 512)
    code, out, _ = run(capsys, *words)
    assert (code, out.splitlines()[-1].split()) == (0, ["lms3d", "1024^2", "4.00"])
    assert "pixels" in out
    monkeypatch.setattr(on_machine, "largest", lambda fits, known=0: 0 if fits.__name__ == "fits_without" else 512)
    code, out, _ = run(capsys, *words)
    assert (code, out.splitlines()[-1].split()) == (0, ["lms3d", "512^2"])


@pytest.mark.slow
def test_the_real_command(tmp_path):
    """With a file of one's own whose link is slow: the table of all ways, and nothing is measured."""
    content = json.loads((Path(machine_files.__file__).parent / "v100-pcie-16gb.json").read_text())
    content["to_host_bytes_per_second"] = {"value": 1e8, "source": "a test"}
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps(content))
    environment = {
        **os.environ,
        "LMS3D_CACHE": str(private_cache(tmp_path / "cache", measured=False)),
        "CUDA_VISIBLE_DEVICES": "",
    }
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    words = [
        "--machine",
        str(mine),
        "--model",
        "unet3d",
        "--resolution",
        "48",
        "--memory-limit",
        "180MiB",
        "--slabs",
        "off",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "lms3d.plan", *words], env=environment, capture_output=True, text=True, timeout=580,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # TensorFlow's remarks are hidden
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert lines[1].startswith("One step on x86, 8 V100 of 16 GB")
    ways = ["without LMS", "lms3d", "lms3d, 2 on a link", "TFLMS", "TFLMS, 2 on a link"]
    assert [line.split("  ")[0] for line in lines[3:]] == ways
    ours = [cell for cell in lines[4].split("  ") if cell]
    assert len(ours) == 9
    assert float(ours[3]) >= 1
    assert not (tmp_path / "cache" / "machine.json").exists()
    assert not (tmp_path / "cache" / "ops.json").exists()


@pytest.mark.slow
def test_the_step_is_that_of_a_gpu_and_the_same_at_any_resolution(in_fresh_process):
    types, on_device = in_fresh_process(_traced)
    assert types[32] == types[48]
    assert "LmsActivateGrad" in types[32]
    assert on_device == {True}


def _traced() -> tuple[dict[int, list[str]], set[bool]]:
    import keras
    import tensorflow as tf

    from lms3d import models
    from lms3d.keras_step import estimate
    from lms3d.models import layers
    from lms3d.scoring import losses

    graphs = {}
    for side in (32, 48):
        with layers.traced_for_gpu():
            model = models.build("unet3d", input_shape=(side, side, side, 4), filters=(16, 32, 64))
            model.compile(keras.optimizers.Adam(5e-4), loss=losses.dice_loss, jit_compile=False)
            spec = tuple(tf.TensorSpec((1, side, side, side, channels), tf.float32) for channels in (4, 3))
            asked = {"memory_limit": 1 << 40, "planner": "off", "with_floor": False}
            graphs[side] = estimate.plan_step(model, spec, machine=machine_files.load("ac922").speeds(), **asked).graph
    return {s: [op.type for op in g.ops] for s, g in graphs.items()}, {op.on_device for op in graphs[32].ops}
