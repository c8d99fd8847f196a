"""Training with plans that are made again from measurements: the same numbers, and the plan that the measurements ask for."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms3d.engine import tuning
from lms3d.engine.engine import Engine, Prepared
from lms3d.engine.prediction import Prediction
from lms3d.engine.tuning import COLD, WARM
from lms3d.errors import DoesNotFit
from lms3d.keras_step import adaptation, on_device
from lms3d.keras_step.callback import LMS
from lms3d.keras_step.step_runner import StepRunner
from tests.lms3d.engine.small_models import Outcome, Trainer, tight_limit

EPOCHS, ROUND = 4, COLD + WARM  # 5 steps each


def deep_model() -> keras.Model:
    """Ten equal blocks: the more memory, the fewer of them are recomputed."""
    keras.utils.set_random_seed(5)
    inputs = y = keras.Input((64, 64, 8))
    for _ in range(10):
        y = keras.layers.Conv2D(16, 3, padding="same")(y)
        y = keras.layers.LeakyReLU()(y)
    model = keras.Model(inputs, keras.layers.Conv2D(2, 1)(y))
    model.compile(optimizer="adam", loss="mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture(scope="module", autouse=True)
def nothing_else_on_the_device() -> Iterator[None]:
    """What the tests before these have left would count, and another margin of it would be all the memory that a step needs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_device, "_extra_bytes", lambda *_: 0)
        yield


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    random = np.random.default_rng(1)
    x, y = (random.normal(size=(10, 64, 64, c)).astype(np.float32) for c in (8, 2))
    return Trainer(deep_model(), x, y)


@pytest.fixture(scope="module")
def without(trainer, session_cache) -> Outcome:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMS3D_CACHE", str(session_cache))  # not the user's
        return trainer.train(LMS(enabled=False), predict=False, epochs=EPOCHS)


@pytest.fixture(scope="module")
def tight(without) -> int:
    return tight_limit(without.prepared, share=0.05)


@pytest.fixture
def limit(tight, monkeypatch) -> int:
    """Tight; and whatever a plan is predicted to cost or to gain is worth a try."""
    monkeypatch.setattr(tuning, "MATTERS", -1.0)
    monkeypatch.setattr(adaptation.Feedback, "reject", lambda *_: "")
    return tight


def same(found: Outcome, expected: Outcome) -> None:
    assert found.losses == expected.losses
    assert found.variables == expected.variables


def measure(monkeypatch: pytest.MonkeyPatch, figures: Callable[[Prepared], dict[str, Any]]) -> list[int]:
    """Invented measurements of each step, by its plan; returns the list that will name the plan of each step."""
    record, plans = StepRunner._record, []

    def recorded(self: StepRunner, kind: str, prepared: Any, batch: Any, seconds: float) -> dict[str, Any]:
        record(self, kind, prepared, batch, seconds)
        plans.append(prepared.number)
        expected = {
            "seconds": 1.0,
            "peak_bytes": int(0.93 * prepared.prediction.limit_bytes),
            "run_seconds": prepared.prediction.predicted_step_seconds,
        }  # no rule objects
        return {**expected, **figures(prepared)}

    monkeypatch.setattr(StepRunner, "_record", recorded)
    return plans


def roomy(prepared: Prepared) -> dict[str, Any]:
    """Every plan is faster than the one before, and leaves half of the memory unused."""
    return {"seconds": 1 / prepared.number, "peak_bytes": prepared.prediction.limit_bytes // 2}


def test_three_more_plans_at_most_and_the_same_numbers(trainer, without, limit, monkeypatch, tmp_path):
    monkeypatch.setattr(tuning, "LEAST_SECONDS", 9.0)  # so short a run grants planning time for three plans, or four
    plans = measure(monkeypatch, roomy)
    peaks, begin = [], adaptation.Feedback.begin

    def begins(self: adaptation.Feedback, number: int, plan: Any, prediction: Prediction, *others: Any) -> None:
        peaks.append(prediction.predicted_peak_bytes)
        begin(self, number, plan, prediction, *others)

    monkeypatch.setattr(adaptation.Feedback, "begin", begins)
    lms = LMS(memory_limit=limit, stats_file=tmp_path / "lms_stats.csv")
    found = trainer.train(lms, predict=False, epochs=EPOCHS)
    same(found, without)
    assert plans == [1] * ROUND + [2] * ROUND + [3] * ROUND + [4] * (5 * EPOCHS - 3 * ROUND)
    budgets = [r.budget_bytes for r in found.reports["train"].rounds]
    assert budgets == [limit, *(int(b * 1.15) for b in budgets[:3])]
    assert peaks[0] < peaks[-1]
    with (tmp_path / "lms_stats.csv").open(newline="") as file:
        assert [int(r["plan"]) for r in csv.DictReader(file)] == plans


def test_slow_links_are_planned_with_the_speed_that_was_seen(trainer, limit, monkeypatch):
    def slow(prepared: Prepared) -> dict[str, Any]:
        return {"swapped_out_bytes": 3e6, "swap_out_seconds": 0.03}

    asked = spy(monkeypatch, Engine, "prepare", "machine")
    measure(monkeypatch, slow)
    trainer.train(LMS(memory_limit=limit), predict=False, epochs=EPOCHS)
    first, second = asked[:2]
    assert first is None
    assert second.swap_out_bytes_per_second == pytest.approx(1e8)
    assert second.swap_in_bytes_per_second == 2e9


@pytest.fixture
def every_step_counts(monkeypatch, own_cache) -> None:
    """However short it is; and nothing is known of any step."""
    monkeypatch.setitem(tuning.LONG_STEP_SECONDS, "CPU", 0.0)


def test_wrong_costs_of_ops_are_found_out_and_planned_again(trainer, without, limit, every_step_counts, monkeypatch):
    """Planted: each step computes for three times as long as all its ops take alone, and waits for nothing."""

    def slow(prepared: Prepared) -> dict[str, Any]:
        computing = prepared.prediction.predicted_step_seconds - prepared.prediction.predicted_stall_seconds
        alone = computing / prepared.machine.ops_scale
        return {"run_seconds": 3 * alone + prepared.prediction.predicted_stall_seconds, "seconds": 1 / prepared.number}

    asked = spy(monkeypatch, Engine, "prepare", "machine")
    plans = measure(monkeypatch, slow)
    found = trainer.train(LMS(memory_limit=limit), predict=False, epochs=EPOCHS)
    same(found, without)
    assert plans == [1] * ROUND + [2] * (5 * EPOCHS - ROUND)
    (first, again) = asked[:2]
    assert first is None
    assert again.ops_scale == pytest.approx(3, rel=0.1)
    rounds = found.reports["train"].rounds
    assert rounds[1].reason == f"ops take {again.ops_scale:.3g} times as long as measured alone"
    assert "as long as measured alone" in found.reports["train"].to_markdown()
    # The next run begins with that.
    begun = trainer.train(LMS(memory_limit=limit), predict=False, epochs=1)
    assert begun.prepared[0].machine.ops_scale == again.ops_scale
    assert begun.prepared[0].prediction.unedited_step_seconds == pytest.approx(
        found.reports["train"].unedited_step_seconds, rel=0.01
    )


def test_a_step_without_a_plan_tells_what_the_next_run_plans_with(trainer, limit, every_step_counts, monkeypatch):
    measure(monkeypatch, lambda prepared: {"run_seconds": 0.8})
    alone = trainer.train(LMS(enabled=False), predict=False, epochs=1)
    assert alone.reports["train"].unplanned_seconds == alone.reports["train"].measured_step_seconds
    found = trainer.train(LMS(memory_limit=limit), predict=False, epochs=1)
    assert found.reports["train"].unplanned_seconds == 0.8
    assert found.reports["train"].unedited_step_seconds == pytest.approx(0.8, rel=0.01)
    assert found.prepared[0].machine.ops_scale > 1


def test_what_is_found_is_kept_even_where_no_other_plan_is_tried(trainer, limit, every_step_counts, monkeypatch):
    """One step is left after four, and planning took as long as twenty."""
    plans: list[int] = []
    plans = measure(monkeypatch, lambda prepared: {"run_seconds": 3.0, "seconds": 1.0 if len(plans) > 1 else 21.0})
    trainer.train(LMS(memory_limit=limit), predict=False, epochs=1)
    begun = trainer.train(LMS(memory_limit=limit), predict=False, epochs=1)
    assert set(plans) == {1}
    assert begun.prepared[0].machine.ops_scale > 1


def test_who_wants_no_other_plan_learns_nothing(trainer, limit, every_step_counts, monkeypatch):
    measure(monkeypatch, lambda prepared: {"run_seconds": 3.0})
    for _ in range(2):
        found = trainer.train(LMS(memory_limit=limit, adapt=False), predict=False, epochs=1)
        assert found.prepared[0].machine.ops_scale == 1.0


def spy(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, option: str) -> list[Any]:
    """Values of a keyword argument in the calls of a method, in the order of the calls."""
    method, seen = getattr(owner, name), []

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(options.get(option))
        return method(self, *arguments, **options)

    monkeypatch.setattr(owner, name, call)
    return seen


def test_a_plan_that_is_not_faster_makes_way_for_the_earlier_one(trainer, without, limit, monkeypatch, tmp_path):
    plans = measure(monkeypatch, lambda prepared: {**roomy(prepared), "seconds": float(prepared.number)})
    discarded, discard = [], Engine.discard
    monkeypatch.setattr(Engine, "discard", lambda self, old: (discarded.append(old.number), discard(self, old)))
    lms = LMS(memory_limit=limit)
    model, x, y = trainer.model, trainer.x, trainer.y
    same(trainer.train(lms, predict=False, epochs=EPOCHS), without)
    assert plans == [1] * ROUND + [2] * ROUND + [1] * (5 * EPOCHS - 2 * ROUND)
    assert discarded == [2, 1]  # the one that stayed when all was over
    lms = LMS(memory_limit=limit)
    model.fit(x, y, batch_size=2, epochs=2, verbose=0, callbacks=[lms])
    lms.write(tmp_path)
    lms.close()
    rounds = json.loads((tmp_path / "lms_plan.json").read_text())["train"]["report"]["rounds"]
    assert [(r["plan"], r["outcome"]) for r in rounds] == [(1, "kept"), (2, "dropped: not faster")]
    assert "## Rounds" in (tmp_path / "lms_report.md").read_text()


def test_a_new_plan_that_runs_out_of_memory_is_undone_and_the_earlier_one_goes_on(trainer, without, limit, monkeypatch):
    execute = StepRunner._execute

    def fails(self: StepRunner, prepared: Any, batch: Any) -> Any:
        outputs = execute(self, prepared, batch)  # has changed the weights already
        if prepared.number == 2:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        return outputs

    monkeypatch.setattr(StepRunner, "_execute", fails)
    plans = measure(monkeypatch, roomy)
    found = trainer.train(LMS(memory_limit=limit), predict=False, epochs=EPOCHS)
    same(found, without)
    assert plans == [1] * 5 * EPOCHS
    assert [r.outcome for r in found.reports["train"].rounds] == ["kept", "dropped: ran out of memory"]


@pytest.mark.parametrize(
    "options",
    [
        {"adapt": False},
        {"enabled": False},
        {"memory_limit": "1GiB"},  # fits as it is
        {"tier": "host", "swapout_threshold": 1, "swapin_ahead": 1, "swapin_groupby": 0, "sync_mode": 0},
    ],
)
def test_where_the_plan_stays_as_it_is(trainer, limit, monkeypatch, options):
    plans = measure(monkeypatch, roomy)
    trainer.train(LMS(**{"memory_limit": limit, **options}), predict=False, epochs=2)
    assert plans == [1] * 10


def test_no_new_plan_for_the_last_steps(trainer, limit, monkeypatch):
    """Four steps remain, and planning took as long as twenty."""

    def figures(prepared: Prepared) -> dict[str, Any]:
        return {**roomy(prepared), "seconds": 1.0 if len(plans) > 1 else 21.0}

    plans: list[int] = []
    plans = measure(monkeypatch, figures)
    trainer.train(LMS(memory_limit=limit), predict=False, epochs=2)
    assert plans == [1] * 10


def test_parameters_that_are_all_fixed_fail_at_once(trainer, monkeypatch):
    tries = []

    def fails(self: StepRunner, prepared: Any, batch: Any) -> Any:
        tries.append(prepared)
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    monkeypatch.setattr(StepRunner, "_execute", fails)
    lms = LMS(memory_limit="1GiB", tier="host", swapout_threshold=1, swapin_ahead=1, swapin_groupby=0, sync_mode=0)
    with pytest.raises(DoesNotFit, match="TFLMS parameters that were given"):
        trainer.train(lms, predict=False)
    assert len(tries) == 1
    assert trainer.model.train_function is None  # Keras did not call `on_train_end`
