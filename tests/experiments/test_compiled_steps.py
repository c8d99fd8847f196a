"""The four architectures have the shapes that they claim, and ratios belong to pairs of steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lms3d.experiments import architectures, compiled_steps
from lms3d.experiments.architectures import NETWORKS
from lms3d.experiments.compiled_steps import OFF
from lms3d.experiments.harness import child, methods
from lms3d.experiments.harness.part import PartResult

SMALL = {"features": (48, 96), "blocks": (1, 1)}
CODE = f"""
import dataclasses, functools, runpy, sys
from lms3d.experiments.architectures import NETWORKS, convnext
small = functools.partial(convnext, **{SMALL})
NETWORKS["convnext"] = dataclasses.replace(NETWORKS["convnext"], build=small)
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def small_children(monkeypatch, commands):
    """Real processes, whose convnext is small, are forks of one that has imported TensorFlow; none compiles its whole step."""
    monkeypatch.setattr(compiled_steps, "WHOLE", ())
    monkeypatch.setattr(child, "of_module", lambda name: [*commands.python(), "-c", CODE, name])


def test_every_network_can_be_asked_for():
    assert tuple(NETWORKS) == compiled_steps.NAMES


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_keeps_the_size_of_what_it_is_given(name):
    network = NETWORKS[name]
    model = network.build(network.multiple)
    assert model.output_shape[1:-1] == model.input_shape[1:-1]
    assert network.side % network.multiple == 0


def test_a_side_that_does_not_fit_is_refused(capsys):
    assert compiled_steps.main(["--networks", "segformer", "--side", "96"]) == 2
    assert "--side 96: segformer takes multiples of 64" in capsys.readouterr().err


def test_a_training_that_ends_early_says_why(small_children, tmp_path, capsys):
    words = ["--networks", "convnext", "--side", "32", "--steps", "1", "--limit", "1MiB", "--output", str(tmp_path)]
    assert compiled_steps.main(words) == 1
    assert "of the trainings ended early: convnext at 32" in capsys.readouterr().err


def test_a_limit_that_is_no_size_is_refused(capsys):
    assert compiled_steps.main(["--limit", "much"]) == 2
    assert "--limit" in capsys.readouterr().err


def test_the_ratio_is_the_median_of_pairs():
    off, auto, whole = compiled_steps.ways("convnext", 0, 1, 3 << 30, 3)
    assert (off.timed, auto.timed, whole.timed) == (False, True, True)
    assert whole.baseline() == replace(whole, method=methods.NONE, baseline_limit_mib=None)
    assert auto.baseline() == replace(auto, method=OFF, baseline_limit_mib=None)  # beside a step that does not compile
    same = {"outcome": "trained", "loss": 1.0, "parameters": 1000}
    cells = compiled_steps.cells(
        PartResult(part=off, seconds=(9.0,) * 3, peaks_bytes=(4 << 20,) * 3, **same),
        PartResult(
            part=auto, seconds=(0.5, 1.8, 2.0), baseline_seconds=(1.0, 2.0, 4.0), peaks_bytes=(3 << 20,) * 3,
            report={"programs": 2, "compiled_ops": 30}, **same,
        ),
        PartResult(part=whole, seconds=(3.0, 5.0), baseline_seconds=(2.0, 2.0), peaks_bytes=(6 << 20,) * 2, **same),
    )  # fmt: skip
    assert cells == [
        "convnext", "1,000", "2.0 s / 1.8 s", "0.50", "4.00 MiB / 3.00 MiB", "0.75", "2 for 30 ops", "0.0e+00",
        "4.0 s, 2.00", "6.00 MiB, 1.50",
    ]  # fmt: skip
    assert len(cells) == len(compiled_steps.HEAD)


def test_two_real_processes_take_their_steps_in_turn(small_children, monkeypatch, tmp_path, capsys):
    """The second without LMS: compiling takes minutes."""
    monkeypatch.setattr(compiled_steps, "AUTO", methods.NONE)
    words = ["--networks", "convnext", "--side", "32", "--batch-size", "2", "--steps", "1", "--limit", "2GiB"]
    assert compiled_steps.main([*words, "--output", str(tmp_path)]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| convnext |")]
    assert " 0 for 0 ops " in row
    off, none = (
        PartResult.load(next((tmp_path / "parts").glob(f"*{method.replace(' ', '_')}*")))
        for method in (OFF, methods.NONE)
    )
    assert off.loss == pytest.approx(none.loss)
    assert len(none.baseline_seconds) == len(none.seconds) == 1
    assert off.parameters == architectures.convnext(32, **SMALL).count_params()
    assert max(off.peaks_bytes) > 4 * off.parameters
