"""A part of a study, which is one child process, and its result: values that are written as JSON. No TensorFlow here."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from lms3d.atomic_files import write_json
from lms3d.experiments.harness.methods import COMPILED, NONE, PREDICTION, UNCOMPILED

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class StudyPart:
    """A child process: `warm_up` + `steps` training steps of a model by one method under a hard limit (None: without one).

    timed: before each of its `steps` another process takes a step without LMS, so that each ratio is to a step just before. A
    part that is not timed only tells whether it trains, and what it needs.
    link: the word of an emulated link (`experiments.links.link`) that LMS swaps through; empty: the machine's own swap tier.
    filters: channels of each level of the network; empty: its own. precision: a Keras dtype policy. deterministic: only kernels
    that give the same bits in each run (a GPU has others). repeat: the number of this part among several of the same.
    profiled: steps under TensorFlow's profiler, after the measured ones. workspace_mib: cuDNN's limit; None: what lms3d chooses.
    batch: samples of a step of a network of `architectures`; the others have their own batch.
    """

    method: str
    model: str
    resolution: int
    limit_mib: int | None = None
    warm_up: int = 1
    steps: int = 4
    timed: bool = True
    link: str = ""
    baseline_limit_mib: int | None = None
    """A large hard limit for the neighbour, so that both take memory from the same allocator; None: no limit."""
    filters: tuple[int, ...] = ()
    precision: str = "float32"
    deterministic: bool = False
    repeat: int = 1
    profiled: int = 0
    workspace_mib: int | None = None
    batch: int = 1

    @classmethod
    def of(cls, values: dict[str, Any]) -> StudyPart:
        """The part in values from JSON, which has no tuples; fields of earlier versions are left out."""
        known = {one.name: values[one.name] for one in fields(cls) if one.name in values}
        return cls(**{**known, "filters": tuple(values.get("filters", ()))})

    @property
    def limit_bytes(self) -> int | None:
        return None if self.limit_mib is None else self.limit_mib * MIB

    @property
    def trains(self) -> bool:
        """Whether steps are run."""
        return self.method != PREDICTION

    @property
    def name(self) -> str:
        """A short and unique name, also that of the part's file."""
        limit = "" if self.limit_mib is None else f"-{self.limit_mib}MiB"
        tried = "" if self.timed else f"-{self.warm_up + self.steps}steps"
        against = "" if self.baseline_limit_mib is None else f"-against-{self.baseline_limit_mib}MiB"
        method = self.method.replace(" ", "_")
        link = f"-{self.link.replace('/', '')}" if self.link else ""
        named = f"{self.model}-{self.resolution}-{method}{limit}{link}{tried}{against}"
        return "-".join([named, *self._unusual()]).replace(" ", "_")

    @property
    def title(self) -> str:
        """The part in words, for the terminal."""
        limit = "" if self.limit_mib is None else f" in {self.limit_mib:,} MiB"
        link = f" over {self.link}" if self.link else ""
        plain = f"{self.model} at {self.resolution}, {self.method}{limit}{link}"
        return ", ".join([plain, *self._unusual()])

    def _unusual(self) -> list[str]:
        """The words about what most parts do not have."""
        return [
            *(["x".join(map(str, self.filters))] if self.filters else []),
            *([self.precision] if self.precision != "float32" else []),
            *(["deterministic"] if self.deterministic else []),
            *([f"run {self.repeat}"] if self.repeat > 1 else []),
            *([f"{self.profiled} profiled"] if self.profiled else []),
            *([f"workspace {self.workspace_mib} MiB"] if self.workspace_mib else []),
            *([f"batch {self.batch}"] if self.batch > 1 else []),
        ]

    def baseline(self) -> StudyPart:
        """The neighbour that it is compared with."""
        method = UNCOMPILED if self.method == COMPILED else NONE
        return replace(self, method=method, limit_mib=self.baseline_limit_mib, baseline_limit_mib=None, link="")


@dataclass(frozen=True, kw_only=True)
class PartResult:
    """What a child reported. outcome: "trained", "predicted", "out of memory", "does not fit" (by the planner), "failed".

    seconds, peaks_bytes: of the steps after the warm-up; baseline_seconds: of the neighbour before each. first_seconds: of the
    first step, which traces, plans and rewrites.
    peak_bytes: the allocator's largest, warm-up included (TensorFlow only). resident_bytes: most anonymous memory of the
    process in a step, less what it had once the framework was imported. recoveries: steps that ran out of memory, and were
    planned and run again. digest: of all weights after three steps. report: figures of `lms3d.keras_step.report.Report`.
    traffic: means over the timed steps of an emulated link: `tiers.base.COUNTERS` and processor seconds (`links.tier`); of the
    machine's own swap tier: the counters that it knows, over all steps after the warm-up.
    machine: speeds that the plan was made with (`cost.Machine`). workspace_mib: cuDNN's limit in force, "" for TensorFlow's own.
    profile: of the profiled steps (`profiling.measure`): device, busy_share, idle_in_step_share, overlap_share, out_bytes and
    in_bytes per step, out_bytes_per_second and in_bytes_per_second while the link is busy, on a GPU kernel_seconds per step and
    kernels, the slowest (`measure.KernelTime`); or {"error": why it cannot be told}.
    """

    part: StudyPart
    outcome: str
    detail: str = ""
    seconds: tuple[float, ...] = ()
    first_seconds: float | None = None
    baseline_seconds: tuple[float, ...] = ()
    peaks_bytes: tuple[int, ...] = ()
    peak_bytes: int | None = None
    resident_bytes: int | None = None
    recoveries: int = 0
    digest: str = ""
    loss: float | None = None
    device: str = ""
    parameters: int | None = None
    traffic: dict[str, float] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    profile: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, float] = field(default_factory=dict)
    workspace_mib: str = ""
    wall_seconds: float = 0.0
    code: str = ""
    """A fingerprint of the code that was measured (`store.code_digest`)."""

    @property
    def trained(self) -> bool:
        return self.outcome == "trained"

    @property
    def step_seconds(self) -> float | None:
        """The median step."""
        return statistics.median(self.seconds) if self.trained and self.seconds else None

    @property
    def ratio(self) -> float | None:
        """The median over the steps of (seconds / seconds of the step without LMS just before)."""
        if not (self.trained and self.baseline_seconds):
            return None
        return statistics.median(own / other for own, other in zip(self.seconds, self.baseline_seconds, strict=True))

    @property
    def peak_error(self) -> float | None:
        """Predicted / measured peak - 1, for the plan that ran last."""
        predicted = self.report.get("predicted_peak_bytes")
        return predicted / max(self.peaks_bytes) - 1 if predicted and self.peaks_bytes and self.trained else None

    @property
    def seconds_error(self) -> float | None:
        """Predicted / measured step seconds - 1."""
        predicted = self.report.get("predicted_step_seconds")
        return predicted / self.step_seconds - 1 if predicted and self.step_seconds else None

    @property
    def ratio_error(self) -> float | None:
        """Predicted / measured ratio to a step without LMS - 1. What slowed the machine down since ops were timed cancels out."""
        predicted = self.predicted_ratio()
        return predicted / self.ratio - 1 if predicted and self.ratio else None

    def predicted_ratio(self, name: str = "predicted_step_seconds") -> float | None:
        """A figure of the report, in seconds / the predicted step without LMS."""
        seconds, without = (self.report.get(one) for one in (name, "unedited_step_seconds"))
        return seconds / without if seconds and without else None

    @property
    def has_plan(self) -> bool:
        """Whether LMS made a plan for the step."""
        return self.report.get("planner") not in (None, "off", "none")

    @property
    def slabs(self) -> str:
        """The slabs of each level, such as "16/8"; "" if all tensors are whole."""
        from lms3d.engine.slabs import choice

        slabs = self.report.get("slabs")
        return choice.text(tuple(tuple(pair) for pair in slabs)) if slabs else ""

    def record(self) -> dict[str, Any]:
        """All figures by their names in CSV files, including the report's and the profile's."""
        part = self.part
        return self.report | self.profile | {
            "model": part.model, "filters": "x".join(map(str, part.filters)), "resolution": part.resolution, "method": part.method,
            "precision": part.precision, "deterministic": part.deterministic, "repeat": part.repeat, "limit_mib": part.limit_mib,
            "outcome": self.outcome, "first_seconds": self.first_seconds, "step_seconds": self.step_seconds,
            "ratio": self.ratio, "peak_bytes": self.peak_bytes,
            "resident_bytes": self.resident_bytes, "peak_error": self.peak_error, "seconds_error": self.seconds_error,
            "ratio_error": self.ratio_error, "predicted_ratio": self.predicted_ratio(), "slabs": self.slabs,
            "workspace_mib": self.workspace_mib, "recoveries": self.recoveries, "loss": self.loss, "digest": self.digest,
            "wall_seconds": self.wall_seconds, "device": self.device, "detail": self.detail,
        }  # fmt: skip

    def moved_bytes(self, way: str) -> float:
        """The bytes that the swap tier counted in a step; way: "out" or "in"."""
        return self.traffic.get(f"swapped_{way}_bytes", 0.0)

    def bytes_per_second(self, way: str) -> float | None:
        """The rate while a transfer was under way, by the tier's own count; None if it counted none."""
        seconds = self.traffic.get(f"swap_{way}_seconds")
        return self.moved_bytes(way) / seconds if seconds else None

    def save(self, folder: Path) -> None:
        write_json(folder / f"{self.part.name}.json", asdict(self))

    @classmethod
    def load(cls, path: Path) -> PartResult:
        values: dict[str, Any] = json.loads(path.read_text())
        part = StudyPart.of(values.pop("part"))
        listed: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(part=part, **listed)


def smallest_mib(results: Iterable[PartResult], method: str) -> int | None:
    """The smallest hard limit that the method trained in; None if there is none."""
    limits = [
        r.part.limit_mib for r in results if r.trained and r.part.method == method and r.part.limit_mib is not None
    ]
    return min(limits, default=None)
