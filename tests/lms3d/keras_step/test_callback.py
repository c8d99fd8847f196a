"""The Keras callback: batches of several shapes, evaluation and prediction, saving, statistics, undoing a failed try."""

from __future__ import annotations

import csv
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms3d.engine.passes.base import was_rewritten
from lms3d.errors import DoesNotFit, InputError
from lms3d.keras_step.callback import LMS
from lms3d.keras_step.estimate import estimate
from lms3d.keras_step.step_log import COLUMNS
from tests.lms3d.engine.small_models import Trainer, tight_limit

SWAP_ALL = {"tier": "host", "swapout_threshold": 1, "swapin_ahead": 1, "swapin_groupby": 0, "sync_mode": 0}


def small_model() -> keras.Model:
    keras.utils.set_random_seed(5)
    inputs = y = keras.Input((16, 16, 8))
    for i in range(4):
        y = keras.layers.Conv2D(40, 3, padding="same", name=f"conv{i}")(y)  # 80 KiB for two samples: more than a crumb
        y = keras.layers.LeakyReLU()(y)
    model = keras.Model(inputs, keras.layers.Conv2D(2, 1)(y))
    model.compile(optimizer="adam", loss="mse", metrics=["mae"], jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture
def trainer() -> Trainer:
    random = np.random.default_rng(1)
    x, y = (random.normal(size=(10, 16, 16, c)).astype(np.float32) for c in (8, 2))
    return Trainer(small_model(), x, y)


def same(found, expected) -> None:
    assert found.losses == expected.losses
    assert found.variables == expected.variables
    assert found.predictions == expected.predictions


def test_a_smaller_last_batch_is_a_step_of_its_own(trainer):
    without = trainer.train(LMS(enabled=False), batch_size=4)
    with_lms = trainer.train(LMS(**SWAP_ALL), batch_size=4)
    same(with_lms, without)
    assert len(with_lms.plans("train")) == 2
    assert all(p.swap_outs for p in with_lms.plans("train"))


@pytest.mark.parametrize("mapped", [True, False])
def test_a_processor_reads_what_is_on_the_disk_where_it_lies_unless_told_to_copy(trainer, mapped):
    without = trainer.train(LMS(enabled=False))
    found = trainer.train(LMS(**{**SWAP_ALL, "tier": "disk"}, mapped=mapped))
    same(found, without)
    plans = found.plans("train")
    assert all(plan.swap_ins for plan in plans)
    assert {back.mapped for plan in plans for back in plan.swap_ins} == {mapped}


def test_several_steps_per_execution(trainer):
    model = trainer.model
    trainer.model.compile(optimizer=model.optimizer, loss="mse", jit_compile=False, steps_per_execution=3)
    without = trainer.train(LMS(enabled=False))
    same(trainer.train(LMS(**SWAP_ALL)), without)
    assert len(without.losses) == 2  # 5 batches: 3 and 2


def test_validation_evaluate_and_predict(trainer):
    model, x, y = trainer.model, trainer.x, trainer.y
    off, on = LMS(enabled=False), LMS(**SWAP_ALL)
    expected = model.evaluate(x, y, batch_size=4, verbose=0, callbacks=[off])
    assert model.evaluate(x, y, batch_size=4, verbose=0, callbacks=[on]) == expected
    np.testing.assert_array_equal(
        model.predict(x, batch_size=4, verbose=0, callbacks=[on]),
        model.predict(x, batch_size=4, verbose=0, callbacks=[off]),
    )
    assert set(on.reports) == {"test", "predict"}
    assert on.report.step == "test"
    without = trainer.train(off, validation_data=(x, y))
    same(trainer.train(LMS(**SWAP_ALL), validation_data=(x, y)), without)


def test_the_models_own_functions_are_back_afterwards(trainer):
    trainer.train(LMS(**SWAP_ALL))
    model = trainer.model
    assert (model.train_function, model.test_function) == (None, None)
    model.fit(trainer.x, trainer.y, batch_size=2, verbose=0)


def test_the_models_own_function_is_back_after_an_error_in_a_step(trainer, monkeypatch):
    from lms3d.keras_step.step_runner import StepRunner

    def fails(self, prepared, batch):
        raise KeyboardInterrupt

    monkeypatch.setattr(StepRunner, "_execute", fails)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(LMS(**SWAP_ALL))
    assert trainer.model.train_function is None


def test_a_saved_model_has_no_trace_of_lms(trainer, tmp_path):
    lms = LMS(**SWAP_ALL)
    trainer.train(lms)
    model = trainer.model
    model.save(tmp_path / "model.keras")
    model.export(tmp_path / "exported", verbose=False)
    assert b"lms/" not in (tmp_path / "exported" / "saved_model.pb").read_bytes()
    again = Trainer(keras.models.load_model(tmp_path / "model.keras"), trainer.x, trainer.y)
    np.testing.assert_array_equal(again.model.predict(trainer.x, verbose=0), model.predict(trainer.x, verbose=0))
    without = again.train(LMS(enabled=False))
    attached = again.train(LMS(**SWAP_ALL))
    same(attached, without)
    assert attached.plans("train")[0].swap_outs


def test_rewriting_a_rewritten_function_again_changes_nothing():
    lms = LMS(**SWAP_ALL)
    function = tf.function(lambda x: tf.sin(tf.cos(tf.sin(x))) + x * 2, autograph=False, jit_compile=False)
    concrete = function.get_concrete_function(tf.TensorSpec((64, 64)))
    once = lms.rewrite(concrete)
    ops = len(once.graph.get_operations())
    assert lms.plan.swap_outs
    assert was_rewritten(once.graph)
    twice = lms.rewrite(once)
    assert len(twice.graph.get_operations()) == ops
    assert lms.plan.empty
    data = tf.random.normal((64, 64), seed=1)
    np.testing.assert_array_equal(twice(data), concrete(data))


# -- limits


def test_estimate_names_a_limit_that_trains(trainer, tmp_path):
    spec = (tf.TensorSpec((2, 16, 16, 8)), tf.TensorSpec((2, 16, 16, 2)))
    report = estimate(trainer.model, spec, memory_limit="1GiB")
    assert report.floor_bytes <= report.unedited_limit_bytes
    below = estimate(trainer.model, spec, memory_limit=report.floor_bytes // 2)
    assert below.floor_bytes > below.limit_bytes == report.floor_bytes // 2


def test_below_the_floor(trainer):
    with pytest.raises(DoesNotFit, match="not even with LMS") as caught:
        trainer.train(LMS(memory_limit="100KiB"))
    assert caught.value.smallest_limit_bytes > 100 << 10


@pytest.mark.parametrize("wrong", [{"planner": "magic"}, {"memory_limit": "a lot"}, {"swapout_threshold": 0}])
def test_options_that_are_refused(wrong):
    with pytest.raises(InputError):
        LMS(**wrong)
    with pytest.raises(TypeError, match="found no argument 'treshold'"):
        LMS(treshold=4)


def test_an_eager_model_is_refused(trainer):
    trainer.model.compile(optimizer="sgd", loss="mse", run_eagerly=True)
    with pytest.raises(InputError, match="run_eagerly"):
        trainer.model.fit(trainer.x, trainer.y, verbose=0, callbacks=[LMS()])


# -- out of memory in spite of the plan


def test_a_step_that_runs_out_of_memory_is_undone_planned_again_and_repeated(trainer, monkeypatch):
    from lms3d.keras_step.step_runner import StepRunner

    without = trainer.train(LMS(enabled=False))
    execute, failed = StepRunner._execute, []

    def fails_twice(self, prepared, batch):
        outputs = execute(self, prepared, batch)  # has changed the weights already
        if prepared.prediction.step == "train" and len(failed) < 2:
            failed.append(prepared)
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        return outputs

    monkeypatch.setattr(StepRunner, "_execute", fails_twice)
    limit = tight_limit(without.prepared, share=0.95)
    found = trainer.train(LMS(memory_limit=limit))
    same(found, without)
    rounds = found.reports["train"].rounds
    assert [(r.reason, r.budget_bytes, r.outcome) for r in rounds[:2]] == [
        ("first plan", limit, "ran out of memory"),
        ("plan 1 ran out of memory", int(limit * 0.92), "ran out of memory"),
    ]
    assert rounds[2].budget_bytes == int(int(limit * 0.92) * 0.92)
    failed.clear()
    with pytest.raises(tf.errors.ResourceExhaustedError):
        trainer.train(LMS(enabled=False))  # nothing to plan better: a real error


# -- what is written


def test_statistics_report_and_files(trainer, tmp_path):
    lms = LMS(stats_file=tmp_path / "lms_stats.csv", **SWAP_ALL | {"tier": "disk", "swap_dir": tmp_path / "swap"})
    model = trainer.model
    model.fit(trainer.x, trainer.y, batch_size=2, verbose=0, callbacks=[lms])
    lms.write(tmp_path)
    with (tmp_path / "lms_stats.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert [(r["step"], r["kind"]) for r in rows] == [(str(i), "train") for i in range(5)]
    plan, report = lms.plan, lms.report
    moved = {int(float(r["swapped_out_bytes"])) for r in rows}
    assert moved == {plan.swapped_out_bytes} == {report.swapped_out_bytes}
    assert all(float(r["swap_out_seconds"]) > 0 and float(r["seconds"]) > 0 for r in rows)
    # TensorFlow's CPU allocator without a limit does not count tensors below 256 KiB, which is all there is here.
    assert all(float(r["peak_bytes"]) >= 0 and float(r["bytes_in_use"]) >= 0 for r in rows)
    assert report.measured_peak_bytes == (max(int(r["peak_bytes"]) for r in rows) or None)
    assert report.steps_measured == 5
    assert {int(r["plan"]) for r in rows} == {report.plan} == {1}
    assert {r["epoch"] for r in rows} == {"1"}
    assert all(int(r["host_peak_bytes"] or 1) > 0 for r in rows)
    written = json.loads((tmp_path / "lms_plan.json").read_text())["train"]
    assert written["plan"] == json.loads(json.dumps(plan.to_dict()))
    assert written["report"]["swapped_out_bytes"] == plan.swapped_out_bytes
    text = (tmp_path / "lms_report.md").read_text()
    assert text.startswith("# LMS report: train step")
    assert all(
        s in text for s in ("| planner | tflms |", "| swap tier | disk |", "## Decisions", "| swapout_threshold | 1 |")
    )
    lms.close()
    assert not list((tmp_path / "swap").iterdir())


def test_a_report_says_why_and_what_else_it_would_have_cost(trainer, tmp_path):
    lms = LMS(**SWAP_ALL)
    trainer.model.fit(trainer.x, trainer.y, batch_size=2, verbose=0, callbacks=[lms])
    lms.write(tmp_path)
    swapped = [d for d in lms.report.decisions if d.action == "swap"]
    assert swapped
    assert all(d.swap_seconds > 0 for d in swapped)
    assert any(d.recompute_seconds for d in swapped)
    assert all(
        d.reason.startswith("swapped: TFLMS decides by the levels of the graph, not by costs; ") for d in swapped
    )
    written = json.loads((tmp_path / "lms_plan.json").read_text())["train"]["report"]["decisions"]
    assert [d["reason"] for d in written] == [d.reason for d in lms.report.decisions]
    text = (tmp_path / "lms_report.md").read_text()
    assert "| to swap | of that hidden | to recompute | links idle | at the peak | why |" in text
    assert all(d.reason in text for d in lms.report.decisions)
    lms.close()
