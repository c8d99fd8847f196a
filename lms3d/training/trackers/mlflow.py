"""MLflow: https://mlflow.org/docs. MLFLOW_TRACKING_URI names the server, the database or the folder."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import ClassVar

from lms3d.training.trackers import PROJECT, TrackedRun, Tracker

_PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "20", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
"""A server that does not answer holds training up for so long; by default that were minutes."""
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


class MLflow(Tracker):
    """A run whose steps are epochs. MLFLOW_EXPERIMENT_NAME and its other variables hold.

    The client sends what it is given. `mlflow.start_run` would add the user, the command and the commit (TRACK-1).
    """

    package: ClassVar[str] = "mlflow"

    def __init__(self, run: TrackedRun) -> None:
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        from mlflow import entities
        from mlflow.tracking import MlflowClient

        self._entities, self._client = entities, MlflowClient()
        if run.id:
            self.id = run.id
            self._client.update_run(self.id, status="RUNNING")
            return
        self.id = self._client.create_run(self._experiment(), run_name=run.name).info.run_id
        # Parameters cannot be changed later, so a new run's stay.
        params = [entities.Param(name, str(value)) for name, value in run.options.items()]
        self._client.log_batch(self.id, params=params)

    def _experiment(self) -> str:
        """The id of the experiment, which is made if it is new."""
        if known := os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return known
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))

    def log(self, row: Mapping[str, float]) -> None:
        now, epoch = int(time.time() * 1000), int(row["epoch"])
        metrics = [self._entities.Metric(_allowed(name), float(value), now, epoch) for name, value in row.items()]
        self._client.log_batch(self.id, metrics=metrics)

    def close(self, ending: str) -> None:
        self._client.set_terminated(self.id, _STATUS[ending])


def _allowed(name: str) -> str:
    """The name of a metric in the characters that MLflow takes; names of labels may have others."""
    return re.sub(r"[^A-Za-z0-9_\-. ]", "_", name)
