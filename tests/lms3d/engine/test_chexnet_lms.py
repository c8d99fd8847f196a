"""The classifier of chest X-rays in less memory than it takes: the same plan, limit and bits as for volumes."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lms3d import models
from lms3d.keras_step.callback import LMS
from lms3d.scoring.findings import Auroc, binary_cross_entropy
from tests.lms3d.engine.small_models import Trainer, densenet, tight_limit
from tests.lms3d.engine.test_models import same
from tests.thorough import also


@pytest.mark.parametrize("blocks", ["of two layers", *also("of densenet121")])
def test_a_densenet_trains_under_a_limit_and_no_bit_changes(blocks, tmp_path):
    keras.utils.set_random_seed(7)
    model = densenet() if blocks == "of two layers" else models.build("densenet121", input_shape=(32, 32, 3))
    model.compile(keras.optimizers.Adam(1e-3), binary_cross_entropy, metrics=[Auroc(14)], jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    random = np.random.default_rng(3)
    x = random.normal(size=(16, 32, 32, 3)).astype(np.float32)
    trainer = Trainer(model, x, random.integers(0, 2, (16, 14)).astype(np.uint8))

    without = trainer.train(LMS(enabled=False), batch_size=8, predict=False)
    limit = tight_limit(without.prepared, share=0.5)
    with_lms = trainer.train(
        LMS(slabs="off", memory_limit=limit, tier="disk", swap_dir=tmp_path), batch_size=8, predict=False
    )
    assert not with_lms.plans("train")[0].empty
    assert (
        with_lms.prepared[0].prediction.predicted_peak_bytes
        <= limit
        < without.prepared[0].prediction.unedited_limit_bytes
    )
    same(with_lms, without)
