"""The peaks of the zoo: what is wrong is seen, and a network whose gradient has constants keeps its limit."""

from __future__ import annotations

import argparse

import pytest

from tests.stress import peaks
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
