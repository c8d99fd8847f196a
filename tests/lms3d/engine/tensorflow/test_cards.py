"""Speeds that no such card has are refused: planted measurements."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
import tensorflow as tf

from lms3d.engine import tuning
from lms3d.engine.cost import Machine
from lms3d.engine.tensorflow import cards, speeds
from lms3d.engine.tiers.base import TierSpeed
from lms3d.machines import machine_files

H100, H200, B200 = ("NVIDIA H100 80GB HBM3", (9, 0)), ("NVIDIA H200", (9, 0)), ("NVIDIA B200", (10, 0))
RIGHT = Machine(flops_per_second=2e14, bytes_per_second=2.4e12)
FIRST_RUN = Machine(flops_per_second=6.3e12, bytes_per_second=125e9)
"""What the first GPU run measured, with one op before each wait."""


def checked(card: tuple[str, tuple[int, int]], *measured: Machine) -> tuple[Machine, int]:
    """The costs used in planning, and how often they were measured."""
    left = list(measured)
    found = cards.checked(lambda: left.pop(0), *card)
    return found, len(measured) - len(left)


@pytest.mark.parametrize("card", [H100, H200, B200])
def test_what_the_card_can_have_is_taken_as_it_is(card, caplog):
    assert checked(card, RIGHT, FIRST_RUN) == (RIGHT, 1)
    assert caplog.text == ""


@pytest.mark.parametrize("card", [H100, H200, B200])
def test_a_wrong_measurement_is_made_again(card, caplog):
    assert checked(card, FIRST_RUN, RIGHT) == (RIGHT, 2)
    assert f"{card[0]}: measured bytes_per_second 1.25e+11, which no such card has" in caplog.text


def test_a_card_that_machine_files_name_is_planned_with_their_figures(caplog):
    stated = [machine_files.load(name) for name in ("h100-pcie", "h100-sxm")]
    found, times = checked(H100, FIRST_RUN, FIRST_RUN)
    assert times == 2
    assert found.bytes_per_second == min(model.memory_bytes_per_second.value for model in stated)
    assert found.flops_per_second == min(model.forward_flops_per_second.value for model in stated)
    assert "machines/h100-pcie.json, machines/h100-sxm.json" in caplog.text


def test_another_card_is_planned_with_the_least_of_its_kind():
    found, _ = checked(B200, FIRST_RUN, FIRST_RUN)
    assert found == replace(FIRST_RUN, bytes_per_second=tuning.SLOWEST_CARDS["stacked memory"][1])


@pytest.mark.parametrize("field", tuning.FASTEST_CARD)
def test_a_measurement_of_nothing_is_no_speed(field):
    assert checked(H100, replace(RIGHT, **{field: 1e17}), RIGHT) == (RIGHT, 2)


@pytest.mark.parametrize(
    "card", [("NVIDIA A100-SXM4-40GB MIG 1g.5gb", (8, 0)), ("NVIDIA GeForce RTX 2050", (8, 6)), ("GPU", (0, 0))]
)
def test_a_slow_card_or_a_part_of_one_may_be_slow(card):
    slow = Machine(flops_per_second=1e12, bytes_per_second=100e9)
    assert checked(card, slow) == (slow, 1)


def test_every_card_in_the_machine_files_is_known_by_its_chip():
    for name in ("Tesla V100-SXM2-16GB", "Tesla V100-PCIE-32GB", "NVIDIA H100 PCIe", "NVIDIA GH200 480GB"):
        assert "machines/" in cards.stated(name, (9, 0)).source


@pytest.mark.parametrize(("free", "side", "count"), [(1 << 40, 16, 1 << 16), (128 * 8**3, 8, 1 << 14), (0, 8, 1 << 14)])
def test_a_card_is_measured_within_its_free_memory(monkeypatch, free, side, count):
    made, ones = [], tf.ones
    monkeypatch.setattr(tuning, "CARD_SIDES", (16, 8))
    monkeypatch.setattr(tuning, "CARD_BYTES", 4 << 16)
    monkeypatch.setattr(speeds.tf, "ones", lambda shape: made.append(shape) or ones(shape))
    speeds._of_card("CPU:0", free)
    assert made == [(1, side, side, side, 32), (3, 3, 3, 32, 32), (count,), ()]


def test_the_speeds_of_a_gpu_go_through_it(monkeypatch, caplog):
    """This processor in place of a card: too slow for any, so that the log says so."""
    monkeypatch.setattr(speeds.tf, "device", lambda name: contextlib.nullcontext())
    monkeypatch.setattr(tuning, "CARD_SIDES", (8,))
    monkeypatch.setattr(tuning, "CARD_BYTES", 1 << 20)
    monkeypatch.setattr(speeds, "device_name", lambda device: H100[0])
    monkeypatch.setattr(speeds.memory, "gpu_capability", lambda: H100[1])
    found = speeds._measure("GPU:0", TierSpeed(swap_out_bytes_per_second=5e10))
    assert found.flops_per_second == cards.stated(*H100).flops_per_second
    assert 0 < found.op_seconds < 1e-3
    assert found.swap_out_bytes_per_second == 5e10
    assert "H100" in caplog.text
