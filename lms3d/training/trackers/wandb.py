"""Weights & Biases: https://docs.wandb.ai. WANDB_MODE=offline writes files for a later `wandb sync`."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import ClassVar

from lms3d.training.trackers import PROJECT, TrackedRun, Tracker

FINISH_SECONDS = 60.0
"""How long a run that has ended waits for a network; `wandb sync` sends the rest."""


class WandB(Tracker):
    """A run whose steps are epochs. WANDB_PROJECT, WANDB_DIR and its other variables hold."""

    package: ClassVar[str] = "wandb"

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self.id = run.id or secrets.token_hex(4)
        # By itself it would keep what the console shows, which names cases, and the command, which names folders (TRACK-1).
        settings = wandb.Settings(console="off", disable_git=True, disable_code=True, x_disable_meta=True)
        if getattr(settings, "finish_timeout", None) == 0:  # without end, unless the user's environment has a number
            settings.finish_timeout = FINISH_SECONDS
        self._run = wandb.init(
            id=self.id, resume="allow" if run.id else None, project=os.environ.get("WANDB_PROJECT", PROJECT), name=run.name,
            dir=os.environ.get("WANDB_DIR", str(run.folder)), config=dict(run.options), settings=settings,
        )  # fmt: skip

    def log(self, row: Mapping[str, float]) -> None:
        self._run.log(dict(row), step=int(row["epoch"]))

    def close(self, ending: str) -> None:
        self._run.finish(exit_code=0 if ending == "finished" else 1)
