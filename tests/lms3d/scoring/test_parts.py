"""A volume that is scored part by part has the loss and the Dice of the whole."""

from itertools import pairwise

import numpy as np
import pytest
import tensorflow as tf

from lms3d.data.volumes.targets import IGNORED
from lms3d.scoring import losses, masked, parts
from lms3d.scoring.keras_dice import MeanDice, RegionDice

SHAPE = (6, 5, 8)


@pytest.fixture(params=["classes", "regions"])
def kind(request):
    return request.param


@pytest.fixture
def volume(kind):
    """(truth, probabilities), both (*SHAPE, 3)."""
    random = np.random.default_rng(0)
    logits = random.normal(0, 2, (*SHAPE, 3)).astype(np.float32)
    if kind == "regions":
        return random.integers(0, 2, (*SHAPE, 3)).astype(np.uint8), 1 / (1 + np.exp(-logits))
    truth = np.eye(3, dtype=np.uint8)[random.integers(0, 2, SHAPE)]  # nowhere the last class
    return truth, np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def cut(y, p, at=(0, 1, 3, 8)):
    return [(y[:, :, a:b], p[:, :, a:b]) for a, b in pairwise(at)]


@pytest.mark.parametrize("ignored", [None, IGNORED])
@pytest.mark.parametrize("name", ["dice", "dice_cross_entropy"])
def test_the_scores_are_those_of_the_whole(volume, kind, name, ignored):
    y, p = volume
    if ignored:
        y[:2] = ignored
    how = {"disjoint": kind == "classes", "threshold": 0.0, "ignored": ignored}
    metrics = [MeanDice([(0,), (1,), (2,)], **how, name="dice"), RegionDice((1, 2), **how, name="dice_both")]
    found = parts.scores(cut(y, p), parts.LossBySums(name=name, classes=kind == "classes", ignored=ignored), metrics)
    whole = masked.loss_of(name, classes=kind == "classes", ignored=ignored)(y[None], tf.constant(p[None]))
    assert found.pop("loss") == pytest.approx(float(whole), rel=1e-5)
    for metric in metrics:
        metric.update_state(y[None], p[None])
        assert found.pop(metric.name) == pytest.approx(float(metric.result()), rel=1e-6)
    assert not found


@pytest.mark.parametrize("kind", ["regions"], indirect=True)
@pytest.mark.parametrize(
    ("name", "loss"), [("dice", losses.dice_loss), ("dice_cross_entropy", losses.dice_cross_entropy)]
)
def test_the_losses_of_brain_tumours_are_among_them(volume, name, loss):
    y, p = volume
    found = parts.scores(cut(y, p), parts.LossBySums(name=name, classes=False), [])
    assert found["loss"] == pytest.approx(float(loss(tf.constant(y[None]), tf.constant(p[None]))), rel=1e-5)


def test_a_region_that_is_empty_in_each_part_but_one_is_not_empty():
    """Each part without it alone would score 1, as an empty region does."""
    y, p = np.zeros((4, 4, 8, 1), np.uint8), np.zeros((4, 4, 8, 1), np.float32)
    y[:, :, 0], p[:, :, 7] = 1, 1
    (metric,) = metrics = [RegionDice((0,), disjoint=False)]
    assert parts.scores(cut(y, p), parts.LossBySums(name="dice", classes=False), metrics)[metric.name] == 0
