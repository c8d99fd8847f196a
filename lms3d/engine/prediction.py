"""What a plan is predicted to do to a step: frozen values, ready for JSON. No TensorFlow here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from lms3d.engine import tuning
from lms3d.engine.slabs import choice
from lms3d.engine.slabs.choice import AUTO, Wanted
from lms3d.errors import DoesNotFit
from lms3d.units import format_seconds, format_size


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What happens to one large tensor, and what its alternatives would have cost (`step_model.alternatives`).

    action: keep, swap, recompute or both. copies: how often the tensor returns per step.
    swap_seconds: to move it out and back once; None if that is impossible. hidden_seconds: how many of these idle links can hide.
    recompute_seconds: to compute it again once; None if that is impossible, or if the tensor is too small to be weighed.
    idle_link_seconds: how long the links are idle during the longest time that nobody uses it.
    peak_bytes: what it holds at the predicted peak, if it is kept. If it is not: how much higher the peak would be if it were.
    reason: the decision in words, with these costs.
    """

    tensor: str
    bytes: int
    action: str
    copies: int = 0
    swap_seconds: float | None = None
    hidden_seconds: float | None = None
    recompute_seconds: float | None = None
    idle_link_seconds: float = 0.0
    peak_bytes: int = 0
    reason: str = ""

    @property
    def weighed(self) -> bool:
        """False for a small tensor or a view, which only TFLMS moves: its alternatives are not known."""
        return self.swap_seconds is None or self.hidden_seconds is not None


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A program that replaces so many ops. seconds_saved: measured alone. unwritten_bytes: of tensors no longer written."""

    name: str
    ops: int
    seconds_saved: float
    unwritten_bytes: int


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The memory and the time that a step takes with a plan, or without one.

    timeline_bytes, timeline_seconds: live bytes at each event, in order, and the time at which the event starts. peak_at: the op
    that runs at the peak. peak_tensors: (name, bytes) of the tensors that are live there, the largest first; the last row is the
    sum of the others. parameters: what the planner has to say about the plan.
    """

    peak_bytes: int
    step_seconds: float
    stall_seconds: float = 0.0
    timeline_bytes: tuple[int, ...] = ()
    timeline_seconds: tuple[float, ...] = ()
    peak_at: str = ""
    peak_tensors: tuple[tuple[str, int], ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Predicted figures of one step ("train", "test", "predict" or "function") under one plan.

    rewritten: False if the plan leaves the step alone. limit_bytes: the limit that the plan was made for.
    lower_bound_seconds: the longest of three times: the step's computing without recomputed ops, its bytes out, and its bytes in,
    each at the link's rate. No step with these transfers is shorter.
    unedited_...: the step without LMS; unedited_limit_bytes: the smallest limit that it runs in.
    floor_bytes: the smallest limit in which any plan that was found fits; None if it was not asked for (`with_floor`).
    decisions: one for each large tensor. timeline_..., peak_...: see `Figures`.
    planning_seconds: what making the plan took; from_cache: the plan was made earlier, for the same request.
    slabs: (level, number) of the levels that are sliced; slab_shapes: their spatial axes, level by level; sliced_tensors: their
    number in the trace; joined: (op, type, bytes) of sliced tensors that had to be joined; slab_seconds: what slices and halos add
    to a step in which nothing moves. If a step is sliced, unedited_... is still the whole step.
    compiled: the programs that XLA compiles (`LMS(compile="auto")`); compiled_bytes, program_seconds: how much lower the peak is,
    and how much shorter the step, with programs and without a plan. If there are some, unedited_... is still the step as traced.
    evaluations: the schedules and replays that the plan was chosen from; effort_seconds: their price (`effort`).
    """

    step: str
    planner: str
    tier: str
    limit_bytes: int
    unedited_peak_bytes: int
    predicted_peak_bytes: int
    unedited_limit_bytes: int
    floor_bytes: int | None
    unedited_step_seconds: float
    predicted_step_seconds: float
    predicted_stall_seconds: float = 0.0
    lower_bound_seconds: float = 0.0
    rewritten: bool = True
    swapped_out_bytes: int = 0
    swapped_in_bytes: int = 0
    recomputed_ops: int = 0
    decisions: tuple[Decision, ...] = ()
    timeline_bytes: tuple[int, ...] = ()
    timeline_seconds: tuple[float, ...] = ()
    unedited_timeline_bytes: tuple[int, ...] = ()
    peak_at: str = ""
    peak_tensors: tuple[tuple[str, int], ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    planning_seconds: float = 0.0
    evaluations: int = 0
    effort_seconds: float = 0.0
    from_cache: bool = False
    slabs: tuple[tuple[int, int], ...] = ()
    slab_shapes: tuple[tuple[int, ...], ...] = ()
    sliced_tensors: int = 0
    slab_seconds: float = 0.0
    joined: tuple[tuple[str, str, int], ...] = ()
    compiled: tuple[Compiled, ...] = ()
    compiled_bytes: int = 0
    program_seconds: float = 0.0

    @property
    def smallest_limit_bytes(self) -> int:
        """The smallest limit with LMS, or without, if that is lower."""
        return min(self.floor_bytes or self.unedited_limit_bytes, self.unedited_limit_bytes)

    @property
    def fits(self) -> bool:
        """Whether the step runs in the limit, with LMS."""
        return self.predicted_peak_bytes <= self.limit_bytes and (
            self.floor_bytes is None or self.smallest_limit_bytes <= self.limit_bytes
        )

    @property
    def changed(self) -> bool:
        """Whether any tensor is moved, recomputed or sliced. Without that the step may still have programs."""
        return self.rewritten or bool(self.slabs)

    @property
    def unmoved_step_seconds(self) -> float:
        """The seconds of the whole step, with its programs if it has some, if nothing is moved."""
        return self.unedited_step_seconds - self.program_seconds

    @property
    def compiled_seconds(self) -> float:
        """The seconds that a step saves by its programs, as they were measured alone."""
        return sum(program.seconds_saved for program in self.compiled)

    def bound_text(self) -> str:
        """The lower bound, such as "1.20 s; this plan takes 1.06 times that"; empty if it is not known."""
        if not self.lower_bound_seconds:
            return ""
        times = self.predicted_step_seconds / self.lower_bound_seconds
        return f"{format_seconds(self.lower_bound_seconds)}; this plan takes {times:.2f} times that"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self), default=int))
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; TypeError for a field that this version does not know."""
        plain = {name: _tuples(value) for name, value in values.items() if name not in ("decisions", "compiled")}
        programs = tuple(Compiled(**program) for program in values["compiled"])
        return cls(**plain, decisions=tuple(Decision(**d) for d in values["decisions"]), compiled=programs)

    def headline(self) -> str:
        """What LMS does, for a terminal: one sentence, and one more each if the step is sliced and if it has programs."""
        return f"{self._plan_sentence()} {self.compiled_sentence()}" if self.compiled else self._plan_sentence()

    def compiled_sentence(self) -> str:
        """The sentence on programs."""
        ops, unwritten = sum(p.ops for p in self.compiled), sum(p.unwritten_bytes for p in self.compiled)
        lower = f", {format_size(self.compiled_bytes)} off the peak without a plan" if self.compiled_bytes > 0 else ""
        return (
            f"Compiled: {len(self.compiled)} programs in place of {ops} ops, {format_seconds(self.compiled_seconds)} and "
            f"{format_size(unwritten)} of writes less per step{lower} (predicted); results equal those of the step as traced, to "
            "rounding."
        )

    def _plan_sentence(self) -> str:
        if not self.changed:
            return ("" if self.fits else self._floor_sentence()) + (
                f"LMS {'moves' if self.compiled else 'changes'} nothing in the {self.step} step: predicted peak "
                f"{format_size(self.predicted_peak_bytes)}, limit {format_size(self.limit_bytes)}."
            )
        moved = f"{format_size(self.swapped_out_bytes)} swapped out per step, {self.recomputed_ops} ops recomputed"
        if not self.swapped_out_bytes and not self.recomputed_ops:
            moved = "nothing is swapped out or recomputed"
            moved = f"the large ops run in another order, {moved}" if self.rewritten else moved
        limit = f"limit {format_size(self.limit_bytes)}" if self.fits else "planned for that limit"
        sentence = (
            f"{'' if self.fits else self._floor_sentence()}LMS takes the {self.step} step from a predicted peak of "
            f"{format_size(self.unedited_peak_bytes)} to {format_size(self.predicted_peak_bytes)} ({limit}): {moved}."
        )
        return f"{sentence} {self.slabs_sentence()}" if self.slabs else sentence

    def _floor_sentence(self) -> str:
        """The sentence on a limit that no plan fits in."""
        smallest, without = format_size(self.smallest_limit_bytes), format_size(self.unedited_limit_bytes)
        return (
            f"The {self.step} step does not fit in {format_size(self.limit_bytes)}: the smallest limit is {smallest} with LMS and "
            f"{without} without. "
        )

    def slabs_sentence(self) -> str:
        """The sentence on slabs."""
        parts = f"{self.levels_text()}; {self.sliced_tensors} tensors sliced; joined: {self.joined_text()}"
        cost = f"{format_seconds(self.slab_seconds)} more per step for that (predicted)"
        return f"Slabs: {parts}; {cost}; results equal those of the whole step to rounding."

    def levels_text(self) -> str:
        """The sliced levels, such as "level 0 (192 x 192 x 192) in 16 slabs, level 1 (96 x 96 x 96) in 8"."""
        named = [
            f"level {level} ({' x '.join(map(str, shape))}) in {number}"
            for (level, number), shape in zip(self.slabs, self.slab_shapes, strict=True)
        ]
        return ", ".join([f"{named[0]} slabs", *named[1:]]) if named else ""

    def joined_text(self) -> str:
        """How many bytes had to be joined, by type of op, the largest first."""
        sizes: dict[str, int] = {}
        for _, kind, size in self.joined:
            sizes[kind] = sizes.get(kind, 0) + size
        largest = sorted(sizes, key=lambda kind: -sizes[kind])
        named = [f"{kind} ({format_size(sizes[kind])})" for kind in largest[: tuning.NAMED_TENSORS]]
        return ", ".join([*named, *(["..."] if len(largest) > len(named) else [])]) or "nothing"

    def refusal(self, wanted: Wanted = AUTO) -> DoesNotFit:
        """The error for a limit below the floor. wanted: the slabs that were asked for."""
        return does_not_fit(
            self.limit_bytes,
            self.smallest_limit_bytes,
            self.unedited_limit_bytes,
            self.peak_tensors[:-1],
            note=choice.note(wanted, self.slabs),
        )


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def does_not_fit(
    limit_bytes: int,
    floor_bytes: int,
    unedited_bytes: int | None = None,
    peak_tensors: tuple[tuple[str, int], ...] = (),
    note: str = "",
) -> DoesNotFit:
    """The error for a limit below the floor. peak_tensors: (name, bytes) at the peak of the lowest plan, the largest first.

    note: on the slabs of that plan (`slabs.choice.note`).
    """
    without = f" and {format_size(unedited_bytes)} without" if unedited_bytes else ""
    largest = ", ".join(f"{name} ({format_size(size)})" for name, size in peak_tensors[: tuning.NAMED_TENSORS])
    needed = f"; largest at its peak: {largest}" if largest else ""
    return DoesNotFit(
        f"the step does not fit in {format_size(limit_bytes)}, not even with LMS: the smallest memory limit that would do is "
        f"{format_size(floor_bytes)} with LMS{without}{needed}; raise the memory limit, or lower the resolution or the "
        f"batch size{note}",
        floor_bytes,
    )
