"""The options of `lms3d.train --task chexnet`: every task's, with the defaults of the CheXNet scaling study."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lms3d.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class ChexnetConfig(TrainConfig):
    """The options of a run that learns findings in chest X-rays."""

    task: str = "chexnet"
    model: str = "densenet121"
    resolution: int = 224
    batch_size: int = 16
    loss: str = "binary_cross_entropy"
    learning_rate: float = 1e-3
    patience: int = 10

    summary: ClassVar[str] = "14 findings in chest X-rays"
    models: ClassVar[tuple[str, ...]] = ("densenet121", "resnet50")
    losses: ClassVar[tuple[str, ...]] = ("binary_cross_entropy", "weighted")
