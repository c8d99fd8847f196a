"""Runs tests that Keras ships, with an LMS callback on every `fit`, `evaluate` and `predict` in them.

    python tests/lms3d/keras_step/keras_own_tests.py RESULTS.json [--all] [--without-lms] [options of pytest]

Once with `LMS()` and once with every tensor swapped, in one process. RESULTS.json: for each mode the outcome of each test, such
as "passed", and how many steps and swap-outs LMS had. --all: every test that is installed, not only `CHOSEN`; minutes.
--without-lms: first as they are, to tell what passes here at all.

Left as they are: models that run eagerly (LMS refuses them). Left out: tests whose packages are missing (JAX, PyTorch, Grain,
Orbax).
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import pytest

import lms3d
from lms3d.keras_step.step_runner import StepRunner
from tests.thorough import THOROUGH

SOURCE = Path(keras.__file__).parent / "src"
TRAINER = next(one for one in keras.Model.__mro__ if "make_train_function" in vars(one))
"""Keras calls it TensorFlowTrainer in 3.15, Trainer in 3.16."""
MODES: dict[str, dict[str, Any] | None] = {
    "without": None,
    "lms": {},
    "swapped": {"swapout_threshold": 1, "swapin_ahead": 1, "swapin_groupby": 1, "sync_mode": 0},
}
FILES = ("trainers/trainer", *(f"callbacks/{name}" for name in (
    "backup_and_restore", "callback", "csv_logger", "early_stopping", "lambda_callback", "learning_rate_scheduler",
    "model_checkpoint", "monitor_callback", "reduce_lr_on_plateau", "swap_ema_weights", "tensorboard", "terminate_on_nan",
)))  # fmt: skip
# What `make test` runs: one of each kind, and none of the slow ones. With `--all` everything passes in both modes that passes
# without LMS, but for `test_swap_ema_weights_with_tf_distribute`: LMS refuses MirroredStrategy.
CHOSEN = (
    "test_metric_tracking", "test_recompile", "test_symbolic_build", "test_callback_methods_keys", "test_training_arg",
    "test_fit_flow_steps_per_epoch_graph_fn", "test_fit_with_val_split_graph_fn", "test_fit_with_custom_train_step",
    "test_fit_with_data_adapter_generator", "test_fit_with_data_adapter_py_dataset_cw", "test_fit_with_data_adapter_tf_dataset",
    "test_fit_sparse_tf_graph", "test_evaluate_sparse_scipy_graph", "test_predict_sparse_tf_graph",
    "test_trainer_with_raggeds_layer", "test_trainer_with_raggeds_model", "test_evaluate_with_custom_test_step_dict",
    "test_predict_flow_struct_graph_fn", "test_nested_input_predict", "test_nested_inputs", "test_rng_updated_during_predict",
    "test_steps_per_execution_steps_count_3_non_jit", "test_steps_per_execution_steps_count_without_training",
    "test_steps_per_execution_steps_per_epoch_unknown_data_size_not_match_too_low_non_jit", "test_stop_loop_fit",
    "test_stop_loop_evaluate", "test_stop_loop_predict", "test_validation_data_infinite_generator", "test_loss_weights",
    "test_constraints_are_applied", "test_internal_only_loss",
    "test_metric_update_in_compute_loss", "test_predict_dropout", "test_retracing",
    "test_best_case_step", "test_stop_training_csv",
    "test_reduces_lr_with_model_fit", "test_swap_ema_weights", "test_TerminateOnNaN", "test_TensorBoard_batch_metrics",
)  # fmt: skip
FEW = CHOSEN if THOROUGH else CHOSEN[::4]
"""The tests that run with `LMS()`, too."""
MISSING = ("jax", "torch", "grain")


class WithLms:
    """A pytest plugin that adds LMS with these options, or nothing, and notes what came of each test."""

    def __init__(self, options: dict[str, Any] | None, chosen: tuple[str, ...] | None) -> None:
        self.options, self.chosen = options, chosen
        self.outcomes: dict[str, str] = {}
        self.counts: Counter[str] = Counter()

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "requires_trainable_backend: Keras's own")

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept = [i for i in items if not any(package in i.name for package in MISSING)]
        items[:] = [i for i in kept if self.chosen is None or i.name in self.chosen]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid] = report.outcome

    @pytest.fixture(autouse=True)
    def add_lms(self, monkeypatch: pytest.MonkeyPatch) -> None:
        if self.options is None:
            return
        for name in ("fit", "evaluate", "predict"):
            monkeypatch.setattr(TRAINER, name, self._with_callback(getattr(TRAINER, name)))
        run = StepRunner.run

        def counted(runner: StepRunner, *arguments: Any) -> Any:
            outputs = run(runner, *arguments)
            self.counts["steps"] += 1
            self.counts["swap_outs"] += sum(len(step.prepared.plan.swap_outs) for step in runner.steps.values())
            return outputs

        monkeypatch.setattr(StepRunner, "run", counted)

    def _with_callback(self, method: Any) -> Any:
        def call(model: Any, *arguments: Any, callbacks: Any = None, **named: Any) -> Any:
            inside_fit = isinstance(callbacks, keras.callbacks.CallbackList)  # validation
            if not inside_fit and not model.run_eagerly:
                callbacks = [*(callbacks or ()), lms3d.LMS(**self.options)]
            return method(model, *arguments, callbacks=callbacks, **named)

        return call


def main(results: str, *options: str) -> None:
    if importlib.util.find_spec("jax") is None:
        sys.modules["jax"] = ModuleType("jax")  # the file imports it, whatever the backend
    files = [str(SOURCE / f"{name}_test.py") for name in FILES]
    quiet = ["-q", "-c", os.devnull, "--rootdir", str(SOURCE), "--import-mode=importlib", "-p", "no:cacheprovider"]
    few, chosen = (None, None) if "--all" in options else (FEW, CHOSEN)
    given = [o for o in options if o not in ("--all", "--without-lms")]
    found = {}
    for mode, lms in MODES.items():
        if lms is None and "--without-lms" not in options:
            continue
        plugin = WithLms(lms, few if mode == "lms" else chosen)
        pytest.main([*files, *quiet, "--tb=short", *given], plugins=[plugin])
        found[mode] = {"outcomes": plugin.outcomes, **plugin.counts}
    Path(results).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
