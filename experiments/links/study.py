"""Which parts, in which order: limits, then every method at every share over every link. No TensorFlow here."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lms3d.atomic_files import write_json
from lms3d.experiments.harness import methods
from lms3d.experiments.harness.bench import Bench
from lms3d.experiments.harness.part import StudyPart
from lms3d.experiments.links import machines
from lms3d.experiments.links.copying import copy_seconds_per_byte
from lms3d.experiments.links.link import SwapLink
from lms3d.experiments.overhead.schedule import PartsOfSize, Wanted
from lms3d.units import format_seconds

SHARES = (0.50, 0.35, 0.25, 0.60)
"""The most important first."""
FLOOR = 0.0
"""In place of a share: the smallest limit that trained with swapped tensors copied back."""
METHODS = (methods.LMS, methods.TFLMS, methods.SWAP_ALL, methods.RECOMPUTE_CHEAP)
UNLIMITED = (methods.SWAP_ALL, methods.RECOMPUTE_CHEAP)
"""Methods with one plan whatever the limit, which seldom fit: measured without a limit, too, with the memory that they take."""
WARM_UP = 2
"""Steps of a part that are not timed."""
REACHED = 0.5
"""A link faster than this share of the speed of one thread's copies is not emulated: the thread shares a core with the step, and
the memory with the other direction. A margin, not measured; each row states the rate that was achieved."""


class LinkSchedule:
    """The parts of one model at one resolution.

    links: names or words (`machines.checked`). shares: of the smallest limit without LMS; FLOOR is one, too.
    """

    def __init__(
        self, bench: Bench, wanted: Wanted, resolution: int, links: Sequence[str], shares: Sequence[float]
    ) -> None:
        self.bench, self.wanted, self.resolution = bench, wanted, resolution
        self.links, self.shares = links, shares
        self.place = PartsOfSize(bench, wanted, resolution)

    def run(self) -> None:
        """Measures all that is missing, the most important first."""
        rates = self._rates()
        known = [rates[name] for name in self.links if rates[name]["reached"]] if rates else []
        for name in self.links if rates else ():
            if not rates[name]["reached"]:
                self.bench.skip(
                    f"{machines.title(name)}: {rates[name]['word']} here is more than {REACHED:.0%} of what one thread copies; "
                    "`lms3d.plan --machine` says what a step would come to there"
                )
        for part in self._parts(None, known, UNLIMITED):
            self.bench.measure(part)
        for share in self.shares if rates else ():
            limit = self._limit_mib(share)
            if limit is None:
                self.bench.skip(f"{self.wanted.model} {self.resolution}³ at {shown(share)} of an unknown limit")
                continue
            for part in self._parts(limit, known, METHODS):
                self.bench.measure(part)

    def _parts(
        self, limit_mib: int | None, rates: Sequence[dict[str, Any]], compared: Sequence[str]
    ) -> Iterator[StudyPart]:
        """Link by link, so that a short time gives a whole comparison of one."""
        for rate in rates:
            for method in compared:
                moves = method != methods.RECOMPUTE_CHEAP  # which is the same over every link
                yield StudyPart(
                    method=method, model=self.wanted.model, resolution=self.resolution, limit_mib=limit_mib, warm_up=WARM_UP,
                    steps=self.wanted.steps, link=rate["word"] if moves else "",
                )  # fmt: skip

    def _limit_mib(self, share: float) -> int | None:
        if share == FLOOR:
            return self.place.copied_mib
        return None if self.place.without_mib is None else math.ceil(share * self.place.without_mib)

    def _rates(self) -> dict[str, Any]:
        """Link -> its word here, and whether it is reached; with the step that they follow from. Empty if there was no time.

        Kept with the output: another run would find others. --again finds them anew.
        """
        kept = read_rates(self.bench.folder)
        known = {} if self.bench.again else kept.get(str(self.resolution), {})
        missing = [name for name in self.links if name not in known]
        if not missing:
            return known
        known = known or self._step()
        if not known:
            return {}
        known |= {name: self._rate(name, known["step_seconds"]) for name in missing}
        write_json(_store(self.bench.folder), kept | {str(self.resolution): known})
        return known

    def _step(self) -> dict[str, Any]:
        """The seconds and floating-point operations of a step without LMS; empty if there was no time."""
        without, predicted = self.bench.measure(self.place.part(methods.NONE)), self.place.prediction
        if without is None or without.step_seconds is None or predicted is None:
            self.bench.skip(
                f"{self.wanted.model} {self.resolution}³: the step without LMS, which sets the links' rates"
            )
            return {}
        return {"step_seconds": without.step_seconds, "step_flops": predicted["step_flops"]}

    def _rate(self, name: str, step_seconds: float) -> dict[str, Any]:
        link = machines.link(name, step_seconds, self.resolution)
        return {"word": str(link), "reached": is_reached(link)}


def is_reached(link: SwapLink) -> bool:
    """Whether one thread's copies keep up with the link, with time to spare."""
    return max(link.out_bytes_per_second, link.back_bytes_per_second) * copy_seconds_per_byte() <= REACHED


def read_rates(output: Path) -> dict[str, dict[str, Any]]:
    """Resolution -> what `LinkSchedule` keeps; nothing before its first part."""
    path = _store(output)
    found: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    return found


def step_in_words(rates: Mapping[str, Any]) -> str:
    """The step without LMS that the rates follow from."""
    seconds, flops = rates["step_seconds"], rates["step_flops"]
    return f"A step without LMS: {format_seconds(seconds)}, {flops / seconds / 1e9:,.0f} GFLOP/s."


def _store(output: Path) -> Path:
    return output / "links.json"


def shown(share: float) -> str:
    """A share in words."""
    return "the floor" if share == FLOOR else f"{share:.0%}"
