"""What a task leaves to the user. Imports next to nothing: `--help` reads it of every task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a task leaves to the user of `lms3d.train`."""

    summary: str
    """For `--help`: "tumours in brain scans"."""
    models: tuple[str, ...]
    """Networks of `models` that it trains."""
    losses: tuple[str, ...]

    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Option -> value, where the default is not that of `TrainConfig`."""
    refused: tuple[str, ...] = ()
    """Options that mean nothing to it."""
    refusal: str = "means nothing there"
    """Why, in the words of the error."""
