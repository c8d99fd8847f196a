"""The page of the study: what was computed on, a table for each section, what did not fit in the time, what failed and why."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from lms3d.experiments.accelerator import tables
from lms3d.experiments.accelerator.card import Card
from lms3d.experiments.accelerator.sections import SECTIONS, StudySection
from lms3d.experiments.accelerator.study import DONE, FAILED, GpuStudy, State
from lms3d.experiments.harness import page, store
from lms3d.experiments.harness.table import markdown
from lms3d.units import format_seconds

REHEARSED = """\
**A rehearsal on a processor, at toy size: it shows that every section runs. Its figures say nothing about a GPU.** Swapped
tensors go to files and are copied back."""


def write(study: GpuStudy, card: Card, typed: str) -> str:
    """Writes report.md, and returns the text."""
    return page.write(study.folder / "report.md", _sections(study, card, typed))


def _sections(study: GpuStudy, card: Card, typed: str) -> Iterator[str]:
    found = study.trainings.found.values()
    yield f"# The GPU case study{' (rehearsal)' if study.rehearsed else ''}"
    if study.rehearsed:
        yield REHEARSED
    earlier = sum(r.code not in ("", store.code_digest()) for r in found)
    yield (
        f"{card}. `{study.scale.model}`; {datetime.now(UTC):%Y-%m-%d}; all {len(found)} trainings together took "
        f"{format_seconds(sum(r.wall_seconds for r in found))}"
        + (f", {earlier} of them before the last change of the code" if earlier else "")
        + f". Made by `{typed}`."
    )
    rows = [_state_cells(section, study.states.get(section.name)) for section in SECTIONS]
    yield markdown(["section", "", "why not", "time"], rows)
    for section in SECTIONS:
        yield f"## {section.title}\n\n{_body(study, section)}"
    yield tables.NOTES


def _state_cells(section: StudySection, state: State | None) -> list[str]:
    if state is None:
        return [section.title, "not run", "", ""]
    return [section.title, state.outcome, state.detail.replace("|", "/"), format_seconds(state.seconds)]


def _body(study: GpuStudy, section: StudySection) -> str:
    state = study.states.get(section.name)
    if section.name == "placement":
        return _placement(state)
    table = tables.table(study.trainings.found, section.name, study.scale)
    if not table:
        return "Nothing measured."
    missing = state is None or state.outcome not in (DONE, FAILED)
    return f"{table}\n\nNot complete: see above." if missing else table


def _placement(state: State | None) -> str:
    if state is None or not state.values:
        return "Nothing measured."
    found = state.values
    wrong = f"in the wrong place: {', '.join(found['wrong'][:5])}" if found["wrong"] else "every one where it should be"
    bits = "the same bits as without LMS" if found["same_bits"] else "**not the same bits as without LMS**"
    return (
        f"A small network on `{found['computes_on']}`: {found['swap_outs']} tensors swapped out, "
        f"{found['swap_ins']} swapped in, {found['recomputes']} ops computed again; {wrong}; variables after two steps: {bits}."
    )
