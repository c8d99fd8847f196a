"""Damaged inputs: every reader gets its sound files again and again, each time with other damage.

INPUT-1  Data come back as they were written, as the file now has them, or made again; or one line names the fault (exit code 2).
         If a file is sealed by a digest, nothing but what was written may come back.
INPUT-2  Never another error, 300 MiB of memory, a file outside the folder, or code of the file that runs.

A case follows from the reader and its number: `inputs --only READER --first NUMBER --inputs 1` repeats it.
"""

from __future__ import annotations

import os
import resource
import shutil
import warnings
from functools import cache
from pathlib import Path
from random import Random

from lms3d import errors
from tests.stress.damages import damage
from tests.stress.harness import Options, Part, Result
from tests.stress.readers import NETWORKS, READERS, Reader

MOST_BYTES = 300 << 20
"""Memory that reading a file of some kilobytes may take."""
_ROOM_BYTES = 4 << 30


class Bench:
    """The sound files of a reader and their content; copied for each case."""

    def __init__(self, name: str, reader: Reader, folder: Path) -> None:
        self.name, self.reader, self.sound, self.box = name, reader, folder / "sound", folder / "box"
        shutil.rmtree(folder, ignore_errors=True)
        self.sound.mkdir(parents=True)
        reader.make(self.sound)
        self.expected = repr(reader.read(self.sound))

    def run(self, seed: int) -> Result:
        """Damages one file by the seed, and reads."""
        rng = Random(f"{self.name} {seed}")
        shutil.rmtree(self.box, ignore_errors=True)
        inner = self.box / "in"
        shutil.copytree(self.sound, inner)
        files = sorted(path for path in inner.glob(self.reader.damaged) if path.is_file() and path.suffix != ".lock")
        victim = rng.choice(files)
        content, how = damage(victim.read_bytes(), rng)
        victim.write_bytes(content)
        outcome, wrong = self._read(inner)
        if made := [path.name for path in self.box.iterdir() if path != inner]:
            wrong = wrong or f"wrote {made[0]} beside its folder"
        if (mark := Path("code-was-run")).exists():
            mark.unlink()
            wrong = "code in the file was run"
        return Result(wrong=wrong and f"{victim.relative_to(inner)}, {how}: {wrong}", counts={outcome: 1})

    def _read(self, folder: Path) -> tuple[str, str]:
        """The outcome of reading: "same", "other" or "refused"; and its fault."""
        before = _peak_bytes(anew=True)
        outcome, wrong = self._outcome(folder)
        if (taken := _peak_bytes() - before) > MOST_BYTES:
            wrong = f"took {taken >> 20} MiB ({wrong or outcome})"
        return outcome, wrong

    def _outcome(self, folder: Path) -> tuple[str, str]:
        try:
            with warnings.catch_warnings(action="ignore"):
                found = repr(self.reader.read(folder))
        except Exception as error:
            line = errors.line(str(error))
            if getattr(error, "exit_code", None) != errors.InputError.exit_code:
                return "refused", f"{type(error).__name__}: {line[:300]}"
            return "refused", "" if line else "refused without a word"
        if found == self.expected.replace(str(self.sound), str(folder)):
            return "same", ""
        return "other", "other content came back" if self.reader.sealed else ""


def _peak_bytes(*, anew: bool = False) -> int:
    """The most memory that this process has had. anew: it counts from now on."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _cases(options: Options, group: str) -> list[str]:
    return [str(number) for number in range(options.first, options.first + options.inputs)]


def _run(options: Options, group: str, case: str) -> Result:
    return _bench(options.output / "inputs", group).run(int(case))


@cache
def _bench(folder: Path, group: str) -> Bench:
    """The bench of this process. A reader that believes a claim of gigabytes gets a MemoryError, and the machine stays usable."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    os.chdir(folder)  # code of a pickle would leave its mark here
    bench = Bench(group, (READERS | NETWORKS)[group], folder / "bench")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _ROOM_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    return bench


INPUTS = Part(groups=tuple(READERS), cases=_cases, run=_run, seconds=600)
NETWORKS_TOO = Part(groups=tuple(NETWORKS), cases=_cases, run=_run, seconds=600)
