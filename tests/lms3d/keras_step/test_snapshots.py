"""Before which steps the variables are copied, and what follows if a step fails without a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lms3d.engine.step_model.pool import CPU_POOL, GPU_POOL
from lms3d.engine.tuning import PROVED_STEPS
from lms3d.errors import DoesNotFit
from lms3d.keras_step import settings
from lms3d.keras_step.callback import LMS
from lms3d.keras_step.step_runner import StepRunner
from lms3d.keras_step.variable_backup import VariableBackup
from tests.lms3d.engine.small_models import Outcome, Trainer
from tests.lms3d.keras_step.test_callback import SWAP_ALL, same, small_model

STEPS = 10
HYBRID = {"tier": "host", "memory_limit": "1GiB", "adapt": False}
SWAPPING = {"tier": "host", "swapout_threshold": 1, "adapt": False}
"""The other parameters of TFLMS are tuned: another plan may follow."""


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    random = np.random.default_rng(1)
    x, y = (random.normal(size=(STEPS, 16, 16, c)).astype(np.float32) for c in (8, 2))
    return Trainer(small_model(), x, y)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(settings, "pool_of", lambda device, limited: GPU_POOL)


@pytest.fixture
def copies(monkeypatch) -> list[VariableBackup]:
    """One entry per copy."""
    taken, take = [], VariableBackup.take
    monkeypatch.setattr(VariableBackup, "take", lambda self: (taken.append(self), take(self))[1])
    return taken


def train(trainer: Trainer, lms: LMS) -> Outcome:
    return trainer.train(lms, batch_size=1, predict=False)


@pytest.mark.parametrize("options", [HYBRID, SWAPPING])
def test_a_plan_that_has_run_some_steps_runs_without_copies(trainer, as_on_a_gpu, copies, options):
    found = train(trainer, LMS(**options))
    assert len(copies) == PROVED_STEPS
    same(found, train(trainer, LMS(enabled=False)))


def test_a_disk_may_fail_in_any_step(trainer, as_on_a_gpu, copies, tmp_path):
    train(trainer, LMS(**SWAPPING | {"tier": "disk", "swap_dir": tmp_path}))
    assert len(copies) == STEPS


def test_on_a_processor_under_a_hard_limit_every_step_has_a_copy(trainer, monkeypatch, copies):
    monkeypatch.setattr(settings, "pool_of", lambda device, limited: CPU_POOL)
    train(trainer, LMS(**SWAPPING))
    assert len(copies) == STEPS


def fails_once_in(step: int) -> Callable[..., Any]:
    """Out of memory after the weights have changed."""
    execute, seen = StepRunner._execute, []

    def run(self: StepRunner, prepared: Any, batch: Any) -> Any:
        outputs = execute(self, prepared, batch)
        seen.append(prepared)
        if len(seen) == step:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        return outputs

    return run


def test_an_early_failure_is_undone(trainer, as_on_a_gpu, monkeypatch):
    expected = train(trainer, LMS(enabled=False))
    monkeypatch.setattr(StepRunner, "_execute", fails_once_in(PROVED_STEPS))
    same(train(trainer, LMS(**SWAPPING)), expected)


def test_a_late_failure_ends_the_training_in_one_line(trainer, as_on_a_gpu, monkeypatch):
    monkeypatch.setattr(StepRunner, "_execute", fails_once_in(PROVED_STEPS + 2))
    with pytest.raises(
        DoesNotFit, match=rf"after {PROVED_STEPS + 1} steps .* half updated.* --resume .*942MiB"
    ) as caught:
        train(trainer, LMS(**HYBRID))
    assert "\n" not in str(caught.value)


def test_a_validation_step_is_never_taken_for_proved(trainer, as_on_a_gpu, monkeypatch):
    """It changes no weight: out of memory, it is planned again however often it has run."""
    proved, answers = StepRunner._proved, set()

    def told(self: StepRunner, step: Any, prepared: Any) -> bool:
        answers.add((step.kind, found := proved(self, step, prepared)))
        return found

    monkeypatch.setattr(StepRunner, "_proved", told)
    trainer.train(LMS(**HYBRID), batch_size=1, predict=False, validation_data=(trainer.x, trainer.y))
    assert answers == {("train", False), ("train", True), ("test", False)}


@pytest.mark.parametrize("options", [SWAP_ALL, {"enabled": False}])
def test_where_no_other_plan_could_follow_nothing_is_copied(trainer, as_on_a_gpu, copies, options):
    train(trainer, LMS(adapt=False, **options))
    assert not copies
