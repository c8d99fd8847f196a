"""An aim, what was measured, and whether the aim was met."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Promise:
    """An aim and its verdict. met: None if nothing was measured."""

    text: str
    measured: str = ""
    met: bool | None = None

    def __str__(self) -> str:
        verdict = {True: "met", False: "missed", None: "not measured"}[self.met]
        return f"{self.text}: {self.measured or 'nothing'} - {verdict}"


def at_most(text: str, ratio: float | None, most: float) -> Promise:
    """A ratio that should not be larger."""
    if ratio is None:
        return Promise(text=text)
    return Promise(text=text, measured=f"{ratio:.2f} x", met=ratio <= most)


def all_within(text: str, most: float, errors: Iterable[float | None], form: str = "+.0%") -> Promise:
    """Relative errors of predictions, none of which should be larger than `most`. None stands for an unknown error."""
    known = [error for error in errors if error is not None]
    worst = max(known, key=abs, default=None)
    if worst is None:
        return Promise(text=text)
    within = sum(abs(error) <= most for error in known)
    return Promise(
        text=text, measured=f"{within} of {len(known)} plans, worst {worst:{form}}", met=abs(worst) <= most
    )  # fmt: skip
