"""Real networks at toy sizes, and training them from one and the same state again and again."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from lms3d import models
from lms3d.engine.engine import Prepared
from lms3d.keras_step.callback import LMS
from lms3d.keras_step.report import Report

VOLUMES = ("unet3d", "isensee2017")


def build(name: str, *, optimizer: Any = None) -> tuple[keras.Model, np.ndarray, np.ndarray]:
    """A compiled model and ten samples: 16^3 voxels, or 32x32 pixels. Three levels of volumes have all ops that five have."""
    keras.utils.set_random_seed(7)
    if name in VOLUMES:
        model = models.build(name, input_shape=(16, 16, 16, 4), filters=(16, 32, 64))
    else:
        application = getattr(keras.applications, name)
        inner = application(input_shape=(32, 32, 3), weights=None, include_top=False, pooling="avg")
        model = keras.Sequential([inner, keras.layers.Dropout(0.3), keras.layers.Dense(5)])
    model.compile(optimizer=optimizer or keras.optimizers.SGD(1e-3, momentum=0.9), loss="mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    random = np.random.default_rng(3)
    x = random.normal(size=(10, *model.input_shape[1:])).astype(np.float32)
    y = random.uniform(size=(10, *model.output_shape[1:])).astype(np.float32)
    return model, x, y


def densenet(shape: tuple[int, int, int] = (32, 32, 3), outputs: int = 14) -> keras.Model:
    """DenseNet with two layers a block for 121's 6 to 24, which take minutes to trace. Not compiled."""
    keras.utils.set_random_seed(7)
    layers = keras.layers
    x = inputs = keras.Input(shape)
    for filters in (16, 24, 32):
        x = layers.AveragePooling2D(2)(layers.Conv2D(filters, 1, use_bias=False)(x))
        for _ in range(2):
            y = layers.ReLU()(layers.BatchNormalization()(x))
            y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(32, 1, use_bias=False)(y)))
            x = layers.Concatenate()([x, layers.Conv2D(8, 3, padding="same", use_bias=False)(y)])
    return keras.Model(inputs, layers.Dense(outputs, activation="sigmoid")(layers.GlobalAveragePooling2D()(x)))


@dataclass
class Outcome:
    """What a training leaves behind, and whether its steps were rewritten."""

    losses: list[float]
    variables: list[bytes]
    predictions: bytes
    prepared: list[Prepared]
    reports: dict[str, Report]

    def plans(self, kind: str) -> list[Any]:
        return [p.plan for p in self.prepared if p.prediction.step == kind]


class Losses(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(float(logs["loss"]))


def state(model: keras.Model) -> list[Any]:
    """Weights, statistics, seeds of dropout, and the optimiser's slots."""
    return [*model.variables, *model.optimizer.variables]


class Trainer:
    """Trains one model from its first state, with one set of callbacks after the other."""

    def __init__(self, model: keras.Model, x: np.ndarray, y: np.ndarray) -> None:
        self.model, self.x, self.y = model, x, y
        self.start = [v.numpy() for v in state(model)]

    def train(self, lms: LMS | None = None, *, batch_size: int = 2, predict: bool = True, **options: Any) -> Outcome:
        for variable, value in zip(state(self.model), self.start, strict=True):
            variable.assign(value)
        gc.collect()  # what earlier trainings hold counts against a limit
        losses, with_lms = Losses(), [lms] if lms else []
        callbacks = [losses, *with_lms]
        self.model.fit(self.x, self.y, batch_size=batch_size, shuffle=False, verbose=0, callbacks=callbacks, **options)
        variables = [v.numpy().tobytes() for v in state(self.model)]
        predictions = b""
        if predict:
            predictions = self.model.predict(self.x, batch_size=batch_size, verbose=0, callbacks=with_lms).tobytes()
        prepared, reports = ([], {}) if lms is None else ([s.prepared for s in lms._runner.steps.values()], lms.reports)
        if lms is not None:
            lms.close()
        return Outcome(losses.seen, variables, predictions, prepared, reports)


def tight_limit(prepared: Sequence[Prepared], kind: str = "train", share: float = 0.2) -> int:
    """A limit between the floor and what the step needs without LMS."""
    from lms3d.engine.cost import Machine
    from lms3d.engine.planning import make_plan
    from lms3d.engine.request import Settings
    from lms3d.engine.tensorflow.capture import capture

    step = next(p for p in prepared if p.prediction.step == kind)
    known = step.prediction.unedited_limit_bytes
    graph = capture(step.function)
    _, report = make_plan(Settings(limit_bytes=known).request(graph, Machine()))
    outside = known - report.unedited_limit_bytes  # what lies on the device besides the step
    return int(outside + report.floor_bytes + share * (report.unedited_limit_bytes - report.floor_bytes))
