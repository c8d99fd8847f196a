"""The peaks of the zoo: faults are seen, and a network whose gradient has constants keeps its limit."""

from __future__ import annotations

import argparse

import pytest

from lms3d.device.pool_layout import FIRST_REGIONS_BYTES
from tests.stress import limits, peaks
from tests.stress.harness import Child
from tests.stress.peaks import Trained

WHOLE = Trained(predicted=100, measured=100, loss=0.5)


@pytest.mark.parametrize(
    ("half", "wrong"),
    [
        (WHOLE._replace(measured=50), ""),
        (WHOLE._replace(measured=51), "limit"),
        (WHOLE._replace(measured=50, loss=0.6), "loss"),
    ],
)
def test_half_of_the_memory_must_be_enough_for_the_same_loss(monkeypatch, half, wrong):
    found = iter([WHOLE, half])
    monkeypatch.setattr("lms3d.limit_memory", lambda limit: None)
    monkeypatch.setattr(peaks, "train", lambda *_: next(found))
    result = peaks.PEAKS.run(argparse.Namespace(), "zoo", "perceptron")
    assert wrong in result.wrong
    assert bool(wrong) == bool(result.wrong)


def test_message_passing_keeps_a_limit_of_half_its_memory(in_fresh_process):
    result = in_fresh_process(peaks.PEAKS.run, argparse.Namespace(), "zoo", "message passing")
    assert result.wrong == ""
    assert "in half: predicted" in result.note


@pytest.mark.parametrize(
    ("under", "wrong", "counted"),
    [
        (WHOLE._replace(predicted=90, measured=80), "", {"planned": 1, "lower": 1}),
        (WHOLE._replace(loss=0.6), "loss", {"planned": 1, "as predicted": 1}),
        (WHOLE._replace(measured=FIRST_REGIONS_BYTES), "limit", {"planned": 1, "higher than predicted": 1}),
        (70, "", {"no plan": 1}),
    ],
)
def test_under_each_limit_a_network_keeps_it_or_is_refused(monkeypatch, under, wrong, counted):
    asked = []

    class Here:
        """In the place of a process of its own."""

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def call(self, function, network, limit):
            assert (function, network) == (limits._limited, "MAML")
            asked.append(limit)
            return under

    monkeypatch.setattr(limits, "_unplanned", lambda network: WHOLE)
    monkeypatch.setattr(limits, "Child", Here)
    result = limits.LIMITS.run(argparse.Namespace(), "MAML", "0.5")
    assert asked == [(100 + FIRST_REGIONS_BYTES) // 2] == [result.figures["limit_bytes"]]
    assert result.counts == counted
    assert wrong in result.wrong
    assert bool(wrong) == bool(result.wrong)


def test_a_network_trains_in_a_pool_of_the_limit():
    with Child() as child:
        found = child.call(limits._limited, "MAML", 40 << 20)
    assert 0 < found.measured <= 40 << 20


def test_the_scan_names_networks_of_the_zoo():
    assert set(limits.NETWORKS) <= set(peaks.zoo())
