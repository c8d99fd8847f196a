"""The bits of each training step in a file per rank, against which later jobs compare theirs as they go. No TensorFlow here.

    FOLDER/rank-0-of-2.jsonl            {"arrays": [names], "circumstances": {...}}, then {"epoch": 1, "step": 1, "digests": "..."}
    FOLDER/rank-0-of-2-differs-1.npz    of the first step that differs: before/NAME, found/NAME
    FOLDER/rank-0-of-2-differs-1.json   which arrays differ, and the circumstances of both jobs

BITS-1  A step that the file does not know is added; one that it knows is compared. So it does not matter which job was the first,
        nor which was killed and resumed.
BITS-2  At the first step that differs all arrays of that step and of the one before are saved. What follows from it says no more,
        and is neither compared nor added.
BITS-3  What cannot be written, ends the record and not the training. A line that a killed job has not ended is taken off.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from lms3d import errors
from lms3d.errors import InputError
from lms3d.files import replacing, write_json

Arrays = Mapping[str, np.ndarray]
_DIGEST_BYTES = 8


def digest(array: np.ndarray) -> str:
    """Of an array's bytes: `2 * _DIGEST_BYTES` letters."""
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


class BitLog:
    """The file of one rank. Only one job at a time has it.

    circumstances: of this job (`device.circumstances`). compared, added: steps so far. difference: of the first step that
    differs, the name of its .json file; None before. InputError where the file is of another network, or in use.
    """

    def __init__(self, folder: Path, name: str, circumstances: Mapping[str, Any]) -> None:
        self.path, self.circumstances = folder / f"{name}.jsonl", dict(circumstances)
        self.compared, self.added = 0, 0
        self.difference: Path | None = None
        self._before: dict[str, np.ndarray] = {}
        self._places: dict[tuple[int, int], int] = {}  # step -> where its line begins
        self._header: dict[str, Any] = {}
        self._going = True
        self._file = _opened(self.path)
        self._read()

    def note(self, epoch: int, step: int, arrays: Arrays) -> None:
        """Compares a step, or adds it (BITS-1). epoch, step: from 1."""
        if not self._going:
            return
        self._require_same_names(list(arrays))
        if not self._going:
            return
        digests = [digest(array) for array in arrays.values()]
        known = self._known(epoch, step)
        if known is None:
            self._before = {}
            self._try(lambda: self._add({"epoch": epoch, "step": step, "digests": "".join(digests)}))
            return
        self.compared += 1
        differ = [name for name, here, there in zip(arrays, digests, known, strict=True) if here != there]
        if differ:
            self._going = False
            self._try(lambda: self._save(epoch, step, arrays, differ))
        self._before = {name: np.array(array) for name, array in arrays.items()}  # copies: the step writes in place

    def close(self) -> bool:
        """Lets go of the file. False where that has been done before."""
        open_before, self._going, self._before = not self._file.closed, False, {}
        with contextlib.suppress(OSError):  # what a full disk did not take
            self._file.close()
        return open_before

    # -- the file ------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Where the steps are; BITS-3."""
        place = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                self._file.truncate(place)
                break
            content = self._parsed(line)
            if "arrays" in content:
                self._header = content
            else:
                self._places[content["epoch"], content["step"]] = place
            place += len(line)

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            content = json.loads(line)
            kinds = {"arrays": list, "circumstances": dict} if "arrays" in content else _STEP
            if all(isinstance(content[name], kind) for name, kind in kinds.items()):
                return dict(content)
        except (ValueError, KeyError, TypeError):
            pass
        raise InputError(f"--record-bits: {self.path} is damaged; remove it, or choose another folder")

    def _require_same_names(self, names: Sequence[str]) -> None:
        if not self._header:
            self._header = {"arrays": list(names), "circumstances": self.circumstances}
            self._try(lambda: self._write(self._header))
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

    def _add(self, line: Mapping[str, Any]) -> None:
        self._write(line)
        self.added += 1

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.seek(0, os.SEEK_END)
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()

    def _try(self, write: Callable[[], object]) -> None:
        """BITS-3."""
        try:
            write()
        except (OSError, errors.StorageError) as error:
            self._going = False
            errors.say(
                f"--record-bits {self.path}: {getattr(error, 'strerror', None) or error}; training goes on without it"
            )

    # -- a difference --------------------------------------------------------------------------------------------------

    def _save(self, epoch: int, step: int, arrays: Arrays, differ: Sequence[str]) -> None:
        """BITS-2."""
        self.difference = _unused(self.path)
        shown = f"{', '.join(differ[:3])}{', ...' if len(differ) > 3 else ''}"
        errors.say(
            f"--record-bits: step {step} of epoch {epoch} is the first with other bits than {self.path} has, in {len(differ)} of "
            f"{len(arrays)} arrays ({shown}); see {self.difference}"
        )
        content: dict[str, Any] = {
            f"{when}/{name}": array
            for when, kept in (("before", self._before), ("found", arrays))
            for name, array in kept.items()
        }
        with replacing(self.difference.with_suffix(".npz")) as partial:
            np.savez(partial, **content)
        found = {
            "epoch": epoch,
            "step": step,
            "differ": list(differ),
            "circumstances": self.circumstances,
            "recorded_circumstances": self._header["circumstances"],
        }
        write_json(self.difference, found)


_STEP = {"epoch": int, "step": int, "digests": str}


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
    file.seek(0)
    return file


def _unused(path: Path) -> Path:
    """The first free name for a difference."""
    numbered = (path.with_name(f"{path.stem}-differs-{number}.json") for number in itertools.count(1))
    return next(name for name in numbered if not name.exists())
