"""The three architectures have the shapes that they claim, and ratios are those of pairs of steps."""

from __future__ import annotations

import pytest

from lms3d.experiments import compiled_steps
from lms3d.experiments.architectures import NETWORKS
from lms3d.experiments.compiled_steps import AUTO, OFF
from lms3d.experiments.harness import methods


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


def test_a_training_that_ends_early_says_why(capsys):
    words = ["--networks", "convnext", "--side", "32", "--steps", "1", "--limit", "20MiB"]
    assert compiled_steps.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the training of convnext ended early: " in line


def test_a_limit_that_is_no_size_is_refused(capsys):
    assert compiled_steps.main(["--limit", "much"]) == 2
    assert "--limit" in capsys.readouterr().err


def test_the_ratio_is_the_median_of_pairs():
    measured = compiled_steps.Measured(
        name="mine",
        parameters=1000,
        seconds={OFF: [1.0, 2.0, 4.0], AUTO: [0.5, 1.8, 2.0]},
        peaks={OFF: 4 << 20, AUTO: 3 << 20},
        losses={OFF: 1.0, AUTO: 1.0},
        programs=2,
        ops=30,
    )
    assert measured.time_ratio == 0.5
    assert measured.cells()[3:7] == ("0.50", "4.00 MiB / 3.00 MiB", "0.75", "2 for 30 ops")


def test_two_real_processes_take_their_steps_in_turn(monkeypatch):
    """The second without LMS: compiling takes minutes."""
    monkeypatch.setattr(compiled_steps, "AUTO", methods.NONE)
    found = compiled_steps.measure("convnext", 32, 2, 2 << 30, 1)
    assert {method: len(seconds) for method, seconds in found.seconds.items()} == {OFF: 1, methods.NONE: 1}
    assert found.losses[OFF] == pytest.approx(found.losses[methods.NONE])
    assert found.parameters > 1e6
    assert found.peaks[OFF] > 4 * found.parameters
