"""Losses of classes and regions in which voxels with the ignore label do not count, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from lms3d.data.volumes.targets import IGNORED
from lms3d.scoring import masked
from lms3d.scoring.keras_dice import MeanDice, RegionDice

SHAPE = (2, 4, 3, 5)


@pytest.fixture
def classes():
    """(truth one-hot (B, ..., 4) uint8, probabilities that add up to 1)."""
    random = np.random.default_rng(0)
    truth = np.eye(4, dtype=np.uint8)[random.integers(0, 4, SHAPE)]
    logits = random.normal(0, 2, (*SHAPE, 4))
    return truth, (np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)).astype(np.float32)


def dice_of(y, p):
    axes = (1, 2, 3)
    return (2 * (y * p).sum(axes) + 1e-5) / (y.sum(axes) + p.sum(axes) + 1e-5)


def loss_and_gradient(loss, y, p):
    variable = tf.Variable(p)
    with tf.GradientTape() as tape:
        value = loss(tf.constant(y), variable)
    return value.numpy(), tape.gradient(value, variable).numpy()


def test_classes_are_scored_without_background(classes):
    y, p = classes
    value, _ = loss_and_gradient(masked.loss_of("dice", classes=True), y, p)
    assert value == pytest.approx(-dice_of(y, p)[:, 1:].mean(), rel=1e-5)
    value, _ = loss_and_gradient(masked.loss_of("dice_cross_entropy", classes=True), y, p)
    expected = -dice_of(y, p)[:, 1:].mean() - np.log((y * p).sum(-1)).mean()
    assert value == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("of_classes", [True, False])
@pytest.mark.parametrize("name", ["dice", "dice_cross_entropy"])
def test_ignored_voxels_change_neither_loss_nor_gradient(classes, of_classes, name):
    y, p = classes
    unknown = np.zeros(SHAPE, bool)
    unknown[:, 2:] = True
    y = y.copy()
    y[unknown] = IGNORED
    loss = masked.loss_of(name, classes=of_classes, ignored=IGNORED)
    value, gradient = loss_and_gradient(loss, y, p)
    assert not gradient[unknown].any()
    assert gradient[~unknown].any()
    alone, of_alone = loss_and_gradient(masked.loss_of(name, classes=of_classes), y[:, :2], p[:, :2])
    assert value == pytest.approx(alone, rel=1e-5)
    np.testing.assert_allclose(gradient[:, :2], of_alone, rtol=1e-4, atol=1e-7)


def test_the_gradient_is_that_of_the_formula(classes):
    y, p = classes
    _, gradient = loss_and_gradient(masked.categorical_cross_entropy, y, p)
    np.testing.assert_allclose(gradient, -y.astype(np.float32) / p / np.prod(SHAPE), rtol=1e-5)


@pytest.mark.parametrize("ignored", [None, IGNORED])
def test_the_mean_over_classes_is_that_of_each(classes, ignored):
    y, p = classes
    y = y.copy()
    if ignored:
        y[:, 0] = ignored
    shared = {"disjoint": True, "threshold": 0.0, "ignored": ignored}
    each = [RegionDice((channel,), **shared) for channel in (1, 2, 3)]
    mean = MeanDice([(1,), (2,), (3,)], **shared)
    looped = MeanDice([(1,), (2,), (3,)], disjoint=False, ignored=ignored)
    apart = [RegionDice((channel,), disjoint=False, ignored=ignored) for channel in (1, 2, 3)]
    for metric in (*each, mean, looped, *apart):
        metric.update_state(tf.constant(y), tf.constant(p))
    assert float(mean.result()) == pytest.approx(np.mean([float(one.result()) for one in each]), rel=1e-6)
    assert float(looped.result()) == pytest.approx(np.mean([float(one.result()) for one in apart]), rel=1e-6)
    known = np.s_[:, 1:] if ignored else np.s_[:]
    winners = p[known].argmax(-1) == 2
    true = y[known][..., 2] == 1
    axes = (1, 2, 3)
    expected = (2 * (winners & true).sum(axes) / (winners.sum(axes) + true.sum(axes))).mean()
    assert float(each[1].result()) == pytest.approx(expected, rel=1e-6)
    assert type(mean).from_config(mean.get_config()).regions == mean.regions
