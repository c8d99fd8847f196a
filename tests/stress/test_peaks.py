"""The peaks of the zoo: what is wrong is seen, and a network whose gradient has constants keeps its limit."""

from __future__ import annotations

import argparse

import pytest

from lms3d.device.pool_layout import FIRST_REGIONS_BYTES
from lms3d.errors import DoesNotFit
from tests.stress import limits, peaks
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
        (DoesNotFit("", 70), "", {"no plan": 1}),
    ],
)
def test_under_each_limit_a_network_keeps_it_or_is_refused(monkeypatch, under, wrong, counted):
    asked = []

    def train(make, limit):
        asked.append(limit)
        if isinstance(under, DoesNotFit):
            raise under
        return under

    monkeypatch.setattr(limits, "_unplanned", lambda network: WHOLE)
    monkeypatch.setattr(peaks, "train", train)
    result = limits.LIMITS.run(argparse.Namespace(), "MAML", "0.5")
    assert asked == [(100 + FIRST_REGIONS_BYTES) // 2] == [result.figures["limit_bytes"]]
    assert result.counts == counted
    assert wrong in result.wrong
    assert bool(wrong) == bool(result.wrong)


def test_the_scan_names_networks_of_the_zoo():
    assert set(limits.NETWORKS) <= set(peaks.zoo())
