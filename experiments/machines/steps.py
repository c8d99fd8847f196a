"""Training steps as graphs, traced for a GPU on whatever is here; nothing is run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from lms3d.engine.ir import StepGraph

if TYPE_CHECKING:
    import keras

ARTICLE, OURS = "article", "ours"
UNLIMITED = 1 << 42


@dataclass(frozen=True, kw_only=True)
class TracedStep:
    """A training step. needed_bytes: the smallest limit without LMS."""

    graph: StepGraph
    needed_bytes: int


@lru_cache(maxsize=2)
def traced(network: str, side: int) -> TracedStep:
    """A step of the article's network or of ours, batch 1, on a cube of this side: some seconds."""
    from lms3d.device import startup

    startup.start_tensorflow(seed=0)
    import keras
    import tensorflow as tf

    from lms3d.engine.cost import Machine
    from lms3d.keras_step import estimate
    from lms3d.models import layers
    from lms3d.scoring import losses

    keras.backend.clear_session()  # the same names, and so the same cached plans, whatever was traced before
    with layers.traced_for_gpu():
        model = _network(network, side)
        model.compile(keras.optimizers.Adam(5e-4), loss=losses.dice_loss, jit_compile=False)
        spec = tuple(tf.TensorSpec((1, side, side, side, channels), tf.float32) for channels in (4, 3))
        planned = estimate.plan_step(
            model, spec, memory_limit=UNLIMITED, planner="off", machine=Machine(), with_floor=False
        )
    return TracedStep(graph=planned.graph, needed_bytes=planned.prediction.unedited_limit_bytes)


def _network(network: str, side: int) -> keras.Model:
    from lms3d import models
    from lms3d.experiments.machines import article

    shape = (side, side, side, 4)
    return article.build(shape) if network == ARTICLE else models.build("isensee2017", input_shape=shape)
