"""`--precision`: activations of two bytes are planned, counted and moved as with four, and no bit changes."""

from __future__ import annotations

from typing import Any

import pytest

from lms3d.errors import DoesNotFit

SIDE = 32
HARD_LIMIT = "96MiB"
ABOVE = 1.15  # the smallest limit that would do
SWAP_ALL = {"swapout_threshold": 1, "swapin_ahead": 1, "swapin_groupby": 0, "sync_mode": 0}


def under_a_hard_limit() -> None:
    """A place in which TensorFlow's allocator counts every byte."""
    import lms3d

    lms3d.limit_memory(HARD_LIMIT)


def trained(precision: str, how: str) -> dict[str, Any]:
    """Two steps of a small U-Net without LMS ("off"), with a plan not far above the smallest limit ("tight"), or with all
    tensors swapped ("all")."""
    import numpy as np

    from lms3d import models
    from lms3d.device import startup
    from lms3d.keras_step.callback import LMS

    startup.start_tensorflow(seed=7, precision=precision)
    model = models.build("isensee2017", input_shape=(SIDE, SIDE, SIDE, 4), filters=(8, 16))
    model.compile("adam", "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    x = np.random.default_rng(3).random((2, SIDE, SIDE, SIDE, 4), np.float32)

    def fit(**options: Any) -> tuple[list[float], LMS]:
        callback = LMS(tier="disk", adapt=False, **options)
        given = {"batch_size": 1, "epochs": 2, "shuffle": False, "verbose": 0, "callbacks": [callback]}
        return model.fit(x, x[..., :3], **given).history["loss"], callback

    if how == "tight":
        with pytest.raises(DoesNotFit) as refused:
            fit(memory_limit="8MiB")
        losses, callback = fit(memory_limit=int(ABOVE * refused.value.smallest_limit_bytes))
    else:
        losses, callback = fit(**(SWAP_ALL if how == "all" else {"enabled": False}))
    found = {
        "optimizer": type(model.optimizer).__name__,
        "activations": model.get_layer("encoder0_a_conv").output.dtype,
        "losses": losses,
        "variables": [np.asarray(v).tobytes() for v in [*model.variables, *model.optimizer.variables]],
        "plan": callback.plan,
        "report": callback.report,
    }
    callback.close()
    return found


@pytest.fixture(scope="module")
def hard_limited(in_fresh_process):
    in_fresh_process(under_a_hard_limit)
    return in_fresh_process


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "how"), [("mixed_bfloat16", "tight"), ("mixed_float16", "all")])
def test_mixed_precision_with_lms(hard_limited, precision, how):
    """In float16 no limit asks for a plan here: TensorFlow's kernels for it take more workspace on a CPU than it saves.

    Whether the measured peak is below that without LMS depends on the processor at this size: one that computes in bfloat16 needs
    no workspace for it.
    """
    without, found = (hard_limited(trained, precision, each) for each in ("off", how))
    assert found["activations"] == precision.removeprefix("mixed_")
    assert (found["optimizer"] == "LossScaleOptimizer") == (precision == "mixed_float16")
    assert found["plan"].swap_outs
    assert found["losses"] == without["losses"]
    assert found["variables"] == without["variables"]
    report = found["report"]
    assert report.plan == 1  # no step ran out of memory
    assert report.measured_peak_bytes <= report.limit_bytes
