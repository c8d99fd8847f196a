"""One part of the benchmark and its result: values that are written as JSON. No TensorFlow here."""

from __future__ import annotations

import functools
import hashlib
import json
import statistics
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lms3d.files import write_json

MIB = 1 << 20

NONE = "no LMS"
KERAS = "Keras fit as it is"
LMS = "LMS"
COPIED = "LMS that copies back"
TFLMS = "TFLMS auto-tune"
SWAP_ALL = "swap everything"
RECOMPUTE_ALL = "recompute everything"
RECOMPUTE_CHEAP = "recompute all but convolutions"
KERAS_REMAT = "keras.RematScope per block"
RECOMPUTE_GRAD = "tf.recompute_grad per block"
XLA = "XLA for the whole step"
TORCH = "PyTorch"
TORCH_CHECKPOINT = "torch.utils.checkpoint per block"
TORCH_SAVE_ON_CPU = "torch save_on_cpu"
TORCH_COMPILED = "torch.compile"
PREDICTION = "prediction"


@dataclass(frozen=True, kw_only=True)
class InTorch:
    """How PyTorch trains. mode: of `torch.compile`, "" for eager. budget: its `activation_memory_budget`, the share of the
    activations that are kept. checkpoint: per block. autocast: to bfloat16. channels_last: order of the axes in memory."""

    mode: str = ""
    budget: float | None = None
    checkpoint: bool = False
    save_on_cpu: bool = False
    autocast: bool = False
    channels_last: bool = False


TORCH_METHODS: dict[str, InTorch] = {
    TORCH: InTorch(),
    f"{TORCH}, channels last": InTorch(channels_last=True),
    f"{TORCH}, bfloat16": InTorch(autocast=True),
    TORCH_CHECKPOINT: InTorch(checkpoint=True),
    TORCH_SAVE_ON_CPU: InTorch(save_on_cpu=True),
    TORCH_COMPILED: InTorch(mode="default"),
    f"{TORCH_COMPILED}, channels last": InTorch(mode="default", channels_last=True),
    f"{TORCH_COMPILED}, bfloat16": InTorch(mode="default", autocast=True),
    f"{TORCH_COMPILED}, max-autotune": InTorch(mode="max-autotune-no-cudagraphs"),
    **{
        f"{TORCH_COMPILED}, activation_memory_budget {budget}": InTorch(mode="default", budget=budget)
        for budget in (0.75, 0.5, 0.25, 0.0)
    },
}
UNIFORM = {
    SWAP_ALL: "swap_everything",
    RECOMPUTE_ALL: "recompute_everything",
    RECOMPUTE_CHEAP: "recompute_all_but_convolutions",
}
"""Method -> its planner of LMS, which makes the same decision for every tensor."""
SAME_NUMBERS = (NONE, LMS, COPIED, TFLMS, *UNIFORM)
"""Methods that edit the same traced step: their weights must be the same bits."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One child process: `warm_up` + `steps` training steps of a model by one method under a hard limit (None: without).

    timed: before each of its `steps` one step without LMS runs in another process, so that a ratio is against a neighbour
    in time. A part that is not timed only tells whether it trains, and what it needs.
    link: the word of an emulated link (`experiments.links.link`) that LMS swaps through; empty: the machine's own swap tier.
    planned: nothing is trained; the result is what the planner says of such a step, with copies that cost the processor nothing.
    filters: channels of each level of the network; empty: its own. precision: a Keras dtype policy. deterministic: only kernels
    of which each run gives the same bits (a GPU has others). repeat: the number of this part among several of the same.
    profiled: steps under TensorFlow's profiler, after the measured ones. workspace_mib: cuDNN's limit; None: what lms3d chooses.
    """

    method: str
    model: str
    resolution: int
    limit_mib: int | None = None
    warm_up: int = 1
    steps: int = 4
    timed: bool = True
    link: str = ""
    planned: bool = False
    baseline_limit_mib: int | None = None
    """A large hard limit for the neighbour, so that both take memory from the same allocator; None: no limit."""
    filters: tuple[int, ...] = ()
    precision: str = "float32"
    deterministic: bool = False
    repeat: int = 1
    profiled: int = 0
    workspace_mib: int | None = None

    @classmethod
    def of(cls, values: dict[str, Any]) -> Part:
        """From JSON, which has no tuples."""
        return cls(**{**values, "filters": tuple(values.get("filters", ()))})

    @property
    def trains(self) -> bool:
        """Whether steps are run."""
        return self.method != PREDICTION and not self.planned

    @property
    def name(self) -> str:
        """Short and unique; also the name of its file."""
        limit = "" if self.limit_mib is None else f"-{self.limit_mib}MiB"
        tried = "" if self.timed else f"-{self.warm_up + self.steps}steps"
        against = "" if self.baseline_limit_mib is None else f"-against-{self.baseline_limit_mib}MiB"
        method = self.method.replace(" ", "_")
        link = f"-{self.link.replace('/', '')}" if self.link else ""
        named = f"{self.model}-{self.resolution}-{method}{limit}{link}{'-planned' if self.planned else tried}{against}"
        return "-".join([named, *self._unusual()]).replace(" ", "_")

    @property
    def title(self) -> str:
        """For the terminal."""
        limit = "" if self.limit_mib is None else f" in {self.limit_mib:,} MiB"
        link = f" over {self.link}" if self.link else ""
        plain = f"{self.model} at {self.resolution}, {self.method}{limit}{link}{' (plan only)' if self.planned else ''}"
        return ", ".join([plain, *self._unusual()])

    def _unusual(self) -> list[str]:
        """In words, what most parts do not have."""
        return [
            *(["x".join(map(str, self.filters))] if self.filters else []),
            *([self.precision] if self.precision != "float32" else []),
            *(["deterministic"] if self.deterministic else []),
            *([f"run {self.repeat}"] if self.repeat > 1 else []),
            *([f"{self.profiled} profiled"] if self.profiled else []),
            *([f"workspace {self.workspace_mib} MiB"] if self.workspace_mib else []),
        ]

    def baseline(self) -> Part:
        """The neighbour that it is compared with."""
        return replace(
            self, method=NONE, limit_mib=self.baseline_limit_mib, baseline_limit_mib=None, link="", planned=False
        )


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a child reported. `outcome`: "trained", "predicted", "out of memory", "does not fit" (by the planner), "failed".

    seconds, peaks_bytes: of the steps after the warm-up; baseline_seconds: of the neighbour before each.
    peak_bytes: the allocator's largest, warm-up included (TensorFlow only). resident_bytes: most anonymous memory of the
    process in a step, less what it had once the framework was imported. recoveries: steps that ran out of memory and were
    planned and run again. digest: of all weights after three steps. report: figures of `lms3d.keras_step.report.Report`.
    traffic: means over the timed steps of an emulated link: `tiers.base.COUNTERS` and processor seconds (`links.tier`); of the
    machine's own swap tier: those of the counters that it knows, over all steps after the warm-up.
    machine: speeds that the plan was made with (`cost.Machine`). workspace_mib: cuDNN's limit in force, "" for TensorFlow's own.
    profile: of the profiled steps (`profiling.measure`): device, busy_share, overlap_share, out_bytes and in_bytes per step,
    out_bytes_per_second and in_bytes_per_second while the link is busy; or {"error": why it cannot be told}.
    """

    part: Part
    outcome: str
    detail: str = ""
    seconds: tuple[float, ...] = ()
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
    """Of the engine and the networks that were measured: see `code_digest`."""

    @property
    def trained(self) -> bool:
        return self.outcome == "trained"

    @property
    def step_seconds(self) -> float | None:
        """Median step."""
        return statistics.median(self.seconds) if self.trained and self.seconds else None

    @property
    def ratio(self) -> float | None:
        """Median over the steps of (seconds / seconds of the step without LMS just before)."""
        if not (self.trained and self.baseline_seconds):
            return None
        return statistics.median(own / other for own, other in zip(self.seconds, self.baseline_seconds, strict=True))

    @property
    def peak_error(self) -> float | None:
        """Predicted / measured peak - 1, of the plan that ran last."""
        predicted = self.report.get("predicted_peak_bytes")
        return predicted / max(self.peaks_bytes) - 1 if predicted and self.peaks_bytes and self.trained else None

    @property
    def seconds_error(self) -> float | None:
        """Predicted / measured step seconds - 1."""
        predicted = self.report.get("predicted_step_seconds")
        return predicted / self.step_seconds - 1 if predicted and self.step_seconds else None

    @property
    def ratio_error(self) -> float | None:
        """Predicted / measured ratio to a step without LMS - 1: without what other work did to the machine since ops were timed."""
        predicted, without = (self.report.get(f"{step}_step_seconds") for step in ("predicted", "unedited"))
        return predicted / without / self.ratio - 1 if predicted and without and self.ratio else None

    def save(self, folder: Path) -> None:
        write_json(folder / f"{self.part.name}.json", asdict(self))

    @classmethod
    def load(cls, path: Path) -> Result:
        values: dict[str, Any] = json.loads(path.read_text())
        part = Part.of(values.pop("part"))
        listed: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(part=part, **listed)


@functools.cache
def code_digest() -> str:
    """A fingerprint of all source files whose change may change what is measured."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(
        [*root.glob("lms3d/**/*.py"), *root.glob("models/*.py"), *root.glob("experiments/overhead/*.py")]
    ):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
