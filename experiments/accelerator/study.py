"""Sections in turn: each has its share of the time, is saved as it ends, and cannot end the others. No TensorFlow here."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lms3d import console
from lms3d.atomic_files import write_json
from lms3d.errors import line
from lms3d.experiments.accelerator import placement, tables
from lms3d.experiments.accelerator.scale import Scale
from lms3d.experiments.accelerator.sections import SECTIONS, StudySection
from lms3d.experiments.accelerator.trainings import OutOfTime, Trainings
from lms3d.experiments.harness.child import ChildFailed

DONE, FAILED, OUT_OF_TIME, INTERRUPTED = "done", "failed", "out of time", "interrupted"


@dataclass(frozen=True, kw_only=True)
class State:
    """How a section ended. detail: one line, why it is not done. values: what it found beside trainings."""

    outcome: str
    detail: str = ""
    seconds: float = 0.0
    values: dict[str, Any] = field(default_factory=dict)


class GpuStudy:
    """The sections in a folder. states: how each has ended, now or before, if it was ever begun."""

    def __init__(
        self,
        folder: Path,
        scale: Scale,
        trainings: Trainings,
        *,
        rehearsed: bool,
        sections: Sequence[StudySection] = SECTIONS,
        place: Callable[..., dict[str, Any]] | None = None,
    ) -> None:
        self.folder, self.scale, self.trainings, self.rehearsed = folder, scale, trainings, rehearsed
        self.sections, self._place = sections, place or placement.ask
        self.states = {section.name: state for section in sections if (state := self._load(section)) is not None}

    def run(self, minutes: float = math.inf, only: Collection[str] | None = None) -> None:
        """Runs what is missing. Time that a section leaves over goes to those after it. only: names of sections; None is all."""
        deadline = time.monotonic() + 60 * minutes
        chosen = [section for section in self.sections if only is None or section.name in only]
        for number, section in enumerate(chosen):
            left = max(0.0, deadline - time.monotonic())
            weights = sum(one.weight for one in chosen[number:])
            share = section.weight / weights if weights else 1.0
            self.trainings.deadline = math.inf if math.isinf(left) else time.monotonic() + left * share
            state = self._run(section)
            console.say(f"{section.title} {state.outcome}{f': {state.detail}' if state.detail else ''}")
            if section.name == "check":
                console.say(tables.verdicts(self.trainings.found, self.scale))

    def _run(self, section: StudySection) -> State:
        started, outcome, detail, values = time.monotonic(), INTERRUPTED, "", {}
        try:
            values = self._answer(section)
            outcome, detail = DONE, ""
            if failed := tables.failed(self.trainings.found, section.name, self.scale):
                outcome, detail = FAILED, "; ".join(f"{r.part.title}: {r.detail}" for r in failed)
        except OutOfTime as short:
            outcome, detail = OUT_OF_TIME, str(short)
        except ChildFailed as failure:
            outcome, detail = OUT_OF_TIME if failure.outcome == OUT_OF_TIME else FAILED, failure.detail
        except Exception as error:  # a defect of one section must not cost what the others measure
            outcome, detail = FAILED, f"{type(error).__name__}: {error}"
        finally:
            state = State(outcome=outcome, detail=line(detail), seconds=time.monotonic() - started, values=values)
            self._save(section, state)
        return state

    def _answer(self, section: StudySection) -> dict[str, Any]:
        """What the section found beside results of trainings."""
        if section.name == "placement":
            known = self.states.get(section.name)
            if known is not None and known.outcome == DONE:
                return known.values
            left = self.trainings.seconds_for("it")
            return self._place(self.folder / "logs" / "placement.txt", left, rehearsed=self.rehearsed)
        section.run(self.trainings, self.scale)
        return {}

    def _save(self, section: StudySection, state: State) -> None:
        """Writes the section with its rows, and the table of all."""
        self.states[section.name] = state
        rows = [tables.record(section.name, r) for r in tables.results(self.trainings.found, section.name, self.scale)]
        write_json(self.folder / "sections" / f"{section.name}.json", {**asdict(state), "rows": rows})
        tables.write_table(self.trainings.found, self.scale, self.folder / "gpu_case_study.csv")

    def _load(self, section: StudySection) -> State | None:
        try:
            values = json.loads((self.folder / "sections" / f"{section.name}.json").read_text(encoding="utf-8"))
            return State(**{name: values[name] for name in ("outcome", "detail", "seconds", "values")})
        except (OSError, ValueError, KeyError):
            return None
