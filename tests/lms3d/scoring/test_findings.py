"""Cross-entropies against the papers' formulas and Keras; AUROC while training against scikit-learn, over one rank and more."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import log_loss, roc_auc_score

from lms3d.scoring import findings
from lms3d.scoring.findings import Auroc, PooledAuroc, WeightedCrossEntropy


def answers(n: int = 64, classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Truth (uint8) and probabilities that know something of it; the last class is rare."""
    random = np.random.default_rng(seed)
    truth = (random.random((n, classes)) < np.linspace(0.4, 0.05, classes)).astype(np.uint8)
    logits = random.normal(size=(n, classes)) + 1.5 * truth - 2
    return truth, (1 / (1 + np.exp(-logits))).astype(np.float32)


def test_binary_cross_entropy_is_that_of_scikit_learn():
    truth, p = answers()
    found = findings.binary_cross_entropy(truth, p).numpy()
    assert found == pytest.approx(log_loss(truth.ravel(), p.ravel()), rel=1e-5)
    assert found == pytest.approx(np.mean(keras.losses.binary_crossentropy(truth.astype(np.float32), p)), rel=1e-5)


def test_certain_errors_cost_much_and_stay_finite():
    truth, wrong = np.array([[0, 1]]), np.array([[1.0, 0.0]], np.float32)
    assert findings.binary_cross_entropy(truth, wrong).numpy() == pytest.approx(-np.log(1e-7), rel=1e-3)


def test_weights_are_those_of_the_paper():
    positive, negative = findings.class_weights([25, 100, 0], samples=100)
    assert positive == [0.75, 0.0, 1.0]  # |N| / (|P| + |N|)
    assert negative == [0.25, 1.0, 0.0]  # |P| / (|P| + |N|)


def test_weighted_loss_is_the_formula_of_the_paper():
    truth, p = answers()
    positive, negative = findings.class_weights(truth.sum(axis=0).tolist(), len(truth))
    terms = np.where(truth, -np.array(positive) * np.log(p), -np.array(negative) * np.log(1 - p))
    assert WeightedCrossEntropy(positive, negative)(truth, p).numpy() == pytest.approx(terms.mean(), rel=1e-5)


def test_equal_weights_give_half_the_plain_loss():
    truth, p = answers()
    plain = findings.binary_cross_entropy(truth, p).numpy()
    assert WeightedCrossEntropy([0.5] * 3, [0.5] * 3)(truth, p).numpy() == pytest.approx(plain / 2, rel=1e-5)


def test_both_answers_of_a_class_weigh_the_same():
    """With balanced weights the best constant answer is a half, however rare the class. That is their purpose."""
    truth = np.zeros((100, 1), np.uint8)
    truth[:3] = 1
    loss = WeightedCrossEntropy(*findings.class_weights([3], 100))
    values = [loss(truth, np.full((100, 1), p, np.float32)).numpy() for p in (0.03, 0.4, 0.5, 0.6)]
    assert np.argmin(values) == 2


def test_a_loss_for_other_classes_is_refused():
    with pytest.raises(ValueError, match="weights of 2 classes"):
        WeightedCrossEntropy([0.5] * 2, [0.5] * 2)(*answers())
    with pytest.raises(ValueError, match=r"2 w\+ and 1 w-"):
        WeightedCrossEntropy([0.5] * 2, [0.5])


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_gradients_stay_finite_at_the_ends(p):
    found = tf.Variable(np.full((2, 3), p, np.float32))
    with tf.GradientTape() as tape:
        value = findings.binary_cross_entropy(np.array([[0, 1, 0], [1, 0, 1]]), found)
    assert np.isfinite(tape.gradient(value, found)).all()


def test_a_compiled_model_keeps_loss_and_metric_when_saved(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="sigmoid")])
    model.compile("sgd", WeightedCrossEntropy([0.9, 0.5, 0.2], [0.1, 0.5, 0.8]), metrics=[Auroc(3)], jit_compile=False)
    x, (truth, _) = np.random.default_rng(0).normal(size=(64, 4)), answers()
    before = model.evaluate(x, truth, verbose=0)
    model.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras").evaluate(x, truth, verbose=0) == before


def sklearn_mean(truth: np.ndarray, p: np.ndarray) -> float:
    both = [k for k in range(truth.shape[1]) if 0 < truth[:, k].sum() < len(truth)]
    return float(np.mean([roc_auc_score(truth[:, k], p[:, k]) for k in both]))


def filled(*parts: tuple[np.ndarray, np.ndarray]) -> Auroc:
    metric = Auroc(parts[0][0].shape[1])
    for truth, p in parts:
        metric.update_state(truth, p)
    return metric


def test_auroc_over_batches_is_that_of_all_images():
    truth, p = answers(2000)
    metric = filled(*zip(np.array_split(truth, 7), np.array_split(p, 7), strict=True))
    assert float(metric.result()) == pytest.approx(sklearn_mean(truth, p), abs=1e-3)
    metric.reset_state()
    assert np.isnan(metric.result())


def test_auroc_of_coarse_probabilities_counts_ties_half():
    truth, p = answers(500)
    assert float(filled((truth, p.round(1))).result()) == pytest.approx(sklearn_mean(truth, p.round(1)), abs=1e-6)


def test_auroc_of_a_rare_class_with_tiny_probabilities():
    """Keras's own metric, with buckets of equal probability, cannot tell these apart."""
    truth, p = answers(2000, classes=1)
    tiny = p / 1000
    assert float(filled((truth, tiny)).result()) == pytest.approx(sklearn_mean(truth, tiny), abs=1e-3)
    keras_auc = keras.metrics.AUC()
    keras_auc.update_state(truth, tiny)
    assert abs(float(keras_auc.result()) - sklearn_mean(truth, tiny)) > 0.1


def test_auroc_leaves_out_classes_with_one_answer():
    truth, p = answers(500)
    truth[:, 2] = 0
    assert float(filled((truth, p)).result()) == pytest.approx(sklearn_mean(truth, p), abs=2e-3)


@pytest.mark.parametrize("p", [[[0.0], [1.0]], [[0.0], [1e-30]], [[0.5], [1.0 - 1e-7]]])
def test_auroc_at_the_ends_of_the_range(p):
    truth = np.array([[0], [1]])
    expected = 0.5 if p[1][0] == 1e-30 else 1.0  # beyond the last bucket all are alike
    assert float(filled((truth, np.array(p, np.float32))).result()) == expected


@pytest.mark.parametrize("pool", [sum, lambda arrays: sum(arrays) / len(arrays)])
def test_ranks_together_have_the_auroc_of_all_their_images(pool):
    """Also if two ranks have no positive of a class, one has more difficult images, and one only keeps in step."""
    truth, p = answers(900)
    order = np.argsort(-truth[:, 2], kind="stable")  # the rare class on the first rank alone
    p[order[:300]] /= 3
    parts = [(truth[rows], p[rows]) for rows in np.array_split(order, 3)]
    metrics = [filled(part) for part in parts] + [filled(parts[0])]
    counts = [metric.counts.numpy() for metric in metrics[:3]] + [np.zeros_like(metrics[0].counts.numpy())]
    logs: dict[str, float] = {"val_auroc": 0.0}
    for metric, validates in zip(metrics, (True, True, True, False), strict=True):
        seen = []
        callback = PooledAuroc(metric, lambda own, seen=seen: seen.append(own) or pool(counts), validates=validates)
        callback.on_epoch_end(0, logs)
        assert bool(seen[0].any()) == validates
        assert logs["val_auroc"] == pytest.approx(sklearn_mean(truth, p), abs=1e-3)
        assert "auroc" not in logs  # nothing was trained
    mean_of_ranks = np.mean([float(metric.result()) for metric in metrics[:3]])
    assert abs(mean_of_ranks - sklearn_mean(truth, p)) > 0.01  # what pooling is for


def test_the_callback_tells_training_from_validation():
    """In `fit` the counts of training are taken before validation clears them."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="sigmoid")])
    metric = Auroc(3)
    model.compile("sgd", findings.binary_cross_entropy, metrics=[metric], jit_compile=False)
    random = np.random.default_rng(0)
    x, truth = random.normal(size=(256, 4)).astype(np.float32), answers(256)[0]
    pooled = PooledAuroc(metric, lambda own: own)
    plain = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: before.append(dict(logs)))
    before: list[dict[str, float]] = []
    history = model.fit(
        x, truth, batch_size=32, epochs=2, validation_data=(x[:100], truth[:100]), callbacks=[plain, pooled], verbose=0
    ).history
    for name in ("auroc", "val_auroc"):
        assert len(history[name]) == 2
        assert history[name] == pytest.approx([logs[name] for logs in before], abs=1e-6)
    assert history["auroc"] != history["val_auroc"]


def test_the_last_step_of_an_epoch_knows_the_area_of_all_ranks():
    """A run that is interrupted in validation keeps this value, although the counts of training are gone by then."""
    truth, p = answers()
    metric, other = Auroc(3), Auroc(3)
    metric.update_state(truth[:20], p[:20])
    other.update_state(truth[20:], p[20:])
    pooled = PooledAuroc(metric, lambda own: own + other.counts.numpy())
    pooled.set_params({"steps": 5})
    pooled.on_epoch_begin(0)
    logs = {"auroc": float(metric.result())}
    pooled.on_train_batch_end(3, logs)
    assert logs["auroc"] == float(metric.result())
    pooled.on_train_batch_end(4, logs)
    assert logs["auroc"] == pytest.approx(sklearn_mean(truth, p), abs=1e-3)
