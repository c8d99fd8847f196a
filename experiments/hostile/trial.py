"""One damaged input: made, read, judged.

What must hold: the content comes back as it was written, or another that the file now says, or is made again, or one line says
what is wrong (exit code 2). Never another error, much memory, a file elsewhere, or code that runs.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from experiments.hostile.damages import damage
from experiments.hostile.readers import Reader
from lms3d import errors

MOST_BYTES = 300 << 20
"""That reading a file of some kilobytes may take."""
OUTCOMES = ("same", "other", "refused", "fault")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What became of one input."""

    reader: str
    seed: int
    damage: str
    outcome: str
    told: str = ""
    """The line of a refusal, or what is wrong."""


class Bench:
    """A reader's sound files, and what they say; copied for each trial."""

    def __init__(self, name: str, reader: Reader, folder: Path) -> None:
        self.name, self.reader, self.sound, self.box = name, reader, folder / "sound", folder / "box"
        shutil.rmtree(folder, ignore_errors=True)
        self.sound.mkdir(parents=True)
        reader.make(self.sound)
        self.expected = repr(reader.read(self.sound))

    def run(self, seed: int) -> Trial:
        """Damages one file by the seed, and reads."""
        rng = Random(f"{self.name} {seed}")
        shutil.rmtree(self.box, ignore_errors=True)
        inner = self.box / "in"
        shutil.copytree(self.sound, inner)
        files = sorted(path for path in inner.glob(self.reader.damaged) if path.is_file() and path.suffix != ".lock")
        victim = rng.choice(files)
        content, how = damage(victim.read_bytes(), rng)
        victim.write_bytes(content)
        outcome, told = self._read(inner)
        if outcome != "fault" and (made := [path.name for path in self.box.iterdir() if path != inner]):
            outcome, told = "fault", f"wrote {made[0]} beside its folder"
        if Path("code-was-run").exists():
            Path("code-was-run").unlink()
            outcome, told = "fault", "code in the file was run"
        return Trial(
            reader=self.name, seed=seed, damage=f"{victim.relative_to(inner)}: {how}", outcome=outcome, told=told
        )

    def _read(self, folder: Path) -> tuple[str, str]:
        before = _peak_bytes(anew=True)
        outcome, told = self._outcome(folder)
        if (taken := _peak_bytes() - before) > MOST_BYTES:
            return "fault", f"took {taken >> 20} MiB ({outcome}: {told})"
        return outcome, told

    def _outcome(self, folder: Path) -> tuple[str, str]:
        try:
            with warnings.catch_warnings(action="ignore"):
                found = repr(self.reader.read(folder))
        except Exception as error:
            line = errors.line(str(error))
            if getattr(error, "exit_code", None) != errors.InputError.exit_code:
                return "fault", f"{type(error).__name__}: {line[:300]}"
            if not line:
                return "fault", "refused without a word"
            return "refused", line
        if found == self.expected.replace(str(self.sound), str(folder)):
            return "same", ""
        return ("fault", "other content came back") if self.reader.sealed else ("other", found[:200])


def _peak_bytes(*, anew: bool = False) -> int:
    """The most memory that this process has had; anew: from now on. What it had before a reader began says nothing of that."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def table(trials: Mapping[str, list[Trial]]) -> str:
    """Markdown: a row for each reader, a column for each outcome."""
    rows = ["| reader | inputs | " + " | ".join(OUTCOMES) + " |", "| --- |" + " ---: |" * (len(OUTCOMES) + 1)]
    for name, found in trials.items():
        counts = [sum(one.outcome == outcome for one in found) for outcome in OUTCOMES]
        rows.append(f"| {name} | {len(found)} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(rows)
