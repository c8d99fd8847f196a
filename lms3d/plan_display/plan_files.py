"""The files of a plan: lms_plan.json, lms_report.md, and figures of its memory over the operations and over the seconds."""

from __future__ import annotations

from pathlib import Path

from lms3d.atomic_files import write_text
from lms3d.engine import edit
from lms3d.engine.plan import Plan
from lms3d.engine.prediction import Prediction
from lms3d.engine.request import StepRequest
from lms3d.engine.step_model.simulate import simulate
from lms3d.keras_step import report
from lms3d.scoring.figures import steps


def write(folder: Path, request: StepRequest, plan: Plan, prediction: Prediction, title: str) -> None:
    """Writes lms_plan.json, lms_report.md, memory_timeline.png and timeline.png to `folder`."""
    made, title = report.describe(prediction), title.replace("^3", "$^3$")
    write_text(folder / "lms_plan.json", made.to_json())
    write_text(folder / "lms_report.md", made.to_markdown())
    steps.memory_timeline(
        made.timeline_bytes, made.unedited_timeline_bytes, folder / "memory_timeline.png",
        limit_bytes=made.limit_bytes, measured_peak_bytes=None, title=title, planned_label="with this plan (predicted)",
    )  # fmt: skip
    step, unedited = (
        simulate(edit.apply(request.graph, plan), request.machine),
        simulate(request.graph, request.machine),
    )
    steps.step_timeline(
        folder / "timeline.png",
        memory=(step.timeline_seconds, step.timeline_bytes),
        unedited_memory=(unedited.timeline_seconds, unedited.timeline_bytes),
        lanes={**step.busy, "waiting": step.waiting}, limit_bytes=made.limit_bytes, title=title,
    )  # fmt: skip
