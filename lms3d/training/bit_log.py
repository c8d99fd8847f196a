"""The bits of each training step, in a file per rank; later jobs compare their own bits with it as they train. No TensorFlow here.

    FOLDER/rank-0-of-2.jsonl            {"arrays": [names], "circumstances": {...}}, then {"epoch": 1, "step": 1, "digests": "..."},
                                        and {"run": run folder, "differed": [epoch, step]}, or [] once it no longer does
    FOLDER/rank-0-of-2-differs-1.npz    arrays of the first step that differs: before/NAME, found/NAME
    FOLDER/rank-0-of-2-differs-1.json   which arrays differ, and the circumstances of both jobs

BITS-1  A step that the file does not have is added; a step that it has is compared. So it does not matter which job was the
        first, or which one was killed and resumed.
BITS-2  At the first step that differs, all arrays of that step and of the one before are saved. The steps after it must differ,
        too: they are neither compared nor added, even after a resume, unless the run goes back to that step or before it.
BITS-3  A failure to read or write within a step ends the record and not the training: it may concern this rank alone. The
        unfinished last line of a killed job is cut off.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from lms3d import errors
from lms3d.atomic_files import replacing, write_json
from lms3d.errors import InputError

Arrays = Mapping[str, np.ndarray]
_DIGEST_BYTES = 8


def digest(array: np.ndarray) -> str:
    """The digest of an array's bytes: `2 * _DIGEST_BYTES` hexadecimal digits."""
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


class BitLog:
    """The file of one rank. Only one job at a time has it.

    run: a name that a resumed run keeps. circumstances: this job's (`device.circumstances`). compared, added: the steps so
    far. differs: whether a step of this job, or of an earlier job of the run, differs. difference: the .json file of that step, if
    this job has written it. InputError if the file is damaged or in use.
    """

    def __init__(self, folder: Path, name: str, run: str, circumstances: Mapping[str, Any]) -> None:
        self.path, self.run, self.circumstances = folder / f"{name}.jsonl", run, dict(circumstances)
        self.compared, self.added = 0, 0
        self.differs = False
        self.difference: Path | None = None
        self._before: dict[str, np.ndarray] = {}
        self._places: dict[tuple[int, int], int] = {}  # step -> where its line begins
        self._header: dict[str, Any] = {}
        self._differed: list[int] = []  # [epoch, step] at which an earlier job of this run did
        self._begun, self._going = False, True
        self._file = _opened(self.path)
        try:
            self._read()
        except InputError:
            self._file.close()
            raise
        except OSError as error:
            self._file.close()
            raise InputError(
                f"--record-bits: cannot read {self.path}: {error.strerror}; choose another folder"
            ) from None

    def note(self, epoch: int, step: int, arrays: Arrays) -> None:
        """Compares a step, or adds it (BITS-1). epoch, step: from 1."""
        if self._going and not self._begun:
            self._try(lambda: self._begin(epoch, step))
        if self._going:
            self._try(lambda: self._note(epoch, step, arrays))

    def _note(self, epoch: int, step: int, arrays: Arrays) -> None:
        self._require_same_names(list(arrays))
        digests = [digest(array) for array in arrays.values()]
        known = self._known(epoch, step)
        if known is None:
            self._before = {}
            self._write({"epoch": epoch, "step": step, "digests": "".join(digests)})
            self.added += 1
            return
        self.compared += 1
        differ = [name for name, here, there in zip(arrays, digests, known, strict=True) if here != there]
        if differ:
            self._keep(epoch, step, arrays, differ)
            return
        self._before = {name: np.array(array) for name, array in arrays.items()}  # copies: the step writes in place

    def close(self) -> bool:
        """Closes the file. False if it was closed before."""
        open_before, self._going, self._before = not self._file.closed, False, {}
        with contextlib.suppress(OSError):  # a full disk could not take the rest
            self._file.close()
        return open_before

    # -- the file ------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Finds the place of each step in the file (BITS-3)."""
        self._file.seek(0)
        place = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                self._file.truncate(place)
                break
            if begins := _DIGESTS.match(line):  # they are many, and long
                self._places[int(begins[1]), int(begins[2])] = place
            else:
                self._take(self._parsed(line), place)
            place += len(line)

    def _take(self, content: dict[str, Any], place: int) -> None:
        if "arrays" in content:
            self._header = content
        elif "run" not in content:
            self._places[content["epoch"], content["step"]] = place
        elif content["run"] == self.run:
            self._differed = content["differed"]

    def _begin(self, epoch: int, step: int) -> None:
        """Looks for a difference that an earlier job of this run has found (BITS-2)."""
        self._begun = True
        if not self._differed:
            return
        if [epoch, step] <= self._differed:
            self._write({"run": self.run, "differed": []})
            return
        self._going, self.differs = False, True
        since = "step {1} of epoch {0}".format(*self._differed)
        errors.say(
            f"--record-bits: this run has had other bits than {self.path} since {since}; what follows is not compared"
        )

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            content = json.loads(line)
            kinds = next((kinds for name, kinds in _LINES.items() if name in content), {"": object})
            if all(isinstance(content[name], kind) for name, kind in kinds.items()) and _is_step(
                content.get("differed")
            ):
                return dict(content)
        except (ValueError, KeyError, TypeError):
            pass
        raise InputError(f"--record-bits: {self.path} is damaged; remove it, or choose another folder")

    def _require_same_names(self, names: Sequence[str]) -> None:
        if not self._header:
            self._header = {"arrays": list(names), "circumstances": self.circumstances}
            self._write(self._header)
        elif (of_file := self._header["arrays"]) != list(names):
            pairs = itertools.zip_longest(of_file, names, fillvalue="no more")
            found, expected = next((one, other) for one, other in pairs if one != other)
            raise InputError(
                f"--record-bits: {self.path} is of another network: found {found}, expected {expected}; choose another folder"
            )

    def _known(self, epoch: int, step: int) -> list[str] | None:
        """The digests of a step in the file."""
        if (begin := self._places.get((epoch, step))) is None:
            return None
        self._file.seek(begin)
        text, size = self._parsed(self._file.readline())["digests"], 2 * _DIGEST_BYTES
        if len(text) != size * len(self._header["arrays"]):
            raise InputError(f"--record-bits: {self.path} is damaged; remove it, or choose another folder")
        return [text[place : place + size] for place in range(0, len(text), size)]

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.seek(0, os.SEEK_END)
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()

    def _try(self, write: Callable[[], object]) -> None:
        """Ends the record if `write` fails (BITS-3)."""
        try:
            write()
        except InputError as error:
            self._going = False
            errors.say(f"{error}; training goes on without the record")
        except (OSError, errors.StorageError) as error:
            self._going = False
            errors.say(
                f"--record-bits {self.path}: {getattr(error, 'strerror', None) or error}; training goes on without it"
            )

    # -- a difference --------------------------------------------------------------------------------------------------

    def _keep(self, epoch: int, step: int, arrays: Arrays, differ: Sequence[str]) -> None:
        """Keeps the first step that differs (BITS-2). The line comes first: a disk too full for arrays may still take it."""
        self._going, self.differs = False, True
        self._try(lambda: self._write({"run": self.run, "differed": [epoch, step]}))
        self._try(lambda: self._save(epoch, step, arrays, differ))
        shown = f"{', '.join(differ[:3])}{', ...' if len(differ) > 3 else ''}"
        errors.say(
            f"--record-bits: step {step} of epoch {epoch} is the first with other bits than {self.path} has, in {len(differ)} of "
            f"{len(arrays)} arrays ({shown}){f'; see {self.difference}' if self.difference else ''}"
        )

    def _save(self, epoch: int, step: int, arrays: Arrays, differ: Sequence[str]) -> None:
        note = _unused(self.path)
        content: dict[str, Any] = {
            f"{when}/{name}": array
            for when, kept in (("before", self._before), ("found", arrays))
            for name, array in kept.items()
        }
        with replacing(note.with_suffix(".npz")) as partial:
            np.savez(partial, **content)
        found = {
            "epoch": epoch,
            "step": step,
            "differ": list(differ),
            "circumstances": self.circumstances,
            "recorded_circumstances": self._header["circumstances"],
        }
        write_json(note, found)
        self.difference = note


_LINES: Mapping[str, Mapping[str, type]] = {
    "arrays": {"arrays": list, "circumstances": dict},
    "run": {"run": str, "differed": list},
    "epoch": {"epoch": int, "step": int, "digests": str},
}
"""A name that only one kind of line has -> the types of all that such a line has."""
_DIGESTS = re.compile(rb'\{"epoch": (\d{1,9}), "step": (\d{1,9}), "digests": "')


def _is_step(differed: Any) -> bool:
    """Whether this is a step, or none."""
    return not differed or (len(differed) == 2 and all(type(number) is int for number in differed))


def _opened(path: Path) -> IO[bytes]:
    """The file, made if it is missing, and locked."""
    try:
        file = path.open("a+b")
    except OSError as error:
        raise InputError(f"--record-bits: cannot open {path}: {error.strerror}; choose another folder") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise InputError(
            f"--record-bits: another training records into {path}; wait until it has ended, or choose another folder"
        ) from None
    except OSError:  # no locks on this file system
        pass
    return file


def _unused(path: Path) -> Path:
    """The first free name for a difference."""
    numbered = (path.with_name(f"{path.stem}-differs-{number}.json") for number in itertools.count(1))
    return next(name for name in numbered if not name.exists())
