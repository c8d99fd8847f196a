"""Real networks: losses, weights and predictions are bit-identical with and without LMS.

"Without" is LMS(enabled=False). Stock `fit` runs under TensorFlow's own graph optimisers, of which the arithmetic one,
the folding of constants and the elimination of common subgraphs reorder sums and products: they change the last bits, so LMS
switches them off with or without a plan.
"""

from __future__ import annotations

import pytest

from lms3d.keras_step.callback import LMS
from tests.lms3d.engine.small_models import VOLUMES, Outcome, Trainer, build, tight_limit
from tests.thorough import also

TFLMS = {"swapout_threshold": 20, "swapin_ahead": 3, "swapin_groupby": 5, "sync_mode": 0}


def same(found: Outcome, expected: Outcome) -> None:
    assert found.losses == expected.losses
    assert found.variables == expected.variables
    assert found.predictions == expected.predictions


NO_ROOM = {"MobileNetV2"}
"""At this size its small tensors need as much as its largest op: no limit below its needs without LMS has a plan."""


@pytest.mark.parametrize("name", ["isensee2017", "VGG16", *also("unet3d", "MobileNet", "MobileNetV2")])
def test_no_bit_changes(name, tmp_path):
    """Five steps and the predictions after them: hybrid plan on disk, TFLMS plan in host memory, no plan."""
    trainer = Trainer(*build(name))
    without = trainer.train(LMS(enabled=False))
    assert len(without.losses) == 5
    assert len(set(without.losses)) == 5
    assert [p.empty for p in without.plans("train")] == [True]

    limit = tight_limit(without.prepared, share=0.5 if name in VOLUMES else 0.2)
    hybrid = trainer.train(LMS(slabs="off", memory_limit=limit, tier="disk", swap_dir=tmp_path))
    if name not in NO_ROOM:
        assert not hybrid.plans("train")[0].empty
        assert limit < without.prepared[0].prediction.unedited_limit_bytes
    assert hybrid.prepared[0].prediction.predicted_peak_bytes <= limit
    same(hybrid, without)

    tflms = trainer.train(LMS(tier="host", **TFLMS))
    assert len(tflms.plans("train")[0].swap_outs) > 5
    same(tflms, without)


@pytest.mark.parametrize("name", ["unet3d"])
def test_the_other_tiers(name, tmp_path):
    """What the product above leaves out: TFLMS on disk and the hybrid plan in host memory, in inference too."""
    trainer = Trainer(*build(name))
    without = trainer.train(LMS(enabled=False))
    on_disk = trainer.train(LMS(tier="disk", swap_dir=tmp_path, **TFLMS | {"swapout_threshold": 2, "sync_mode": 3}))
    assert len(on_disk.plans("train")[0].swap_outs) > 20
    assert len(on_disk.plans("predict")[0].swap_outs) > 2
    same(on_disk, without)
    in_host = trainer.train(LMS(slabs="off", memory_limit=tight_limit(without.prepared, share=0.5), tier="host"))
    assert not in_host.plans("train")[0].empty
    same(in_host, without)
