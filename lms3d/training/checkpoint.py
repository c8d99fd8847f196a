"""The file format of checkpoints: arrays and a state in one file, which is replaced atomically.

`last/checkpoint.npz` holds arrays (weights, optimiser slots, dropout's random states, metric sums) and a JSON text with
everything else (`run_state`). A `.keras` file would lack the random states and the metric sums. Rules:

CHECKPOINT-1  The file ends with the SHA-256 of everything before it (the comment of the archive). A file that was changed is
              not read. A file of an earlier version has no comment: the checksums of its members have to do.
CHECKPOINT-2  The generation before the newest is kept, and used if the newest is damaged or missing.
CHECKPOINT-3  A file that the system cannot read (permissions, a lost file server) does not count as damaged.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lms3d import console
from lms3d.atomic_files import link_or_copy, replacing
from lms3d.common import json_values
from lms3d.errors import InputError

_STATE = "state.json"
_DIGEST_BYTES = 64
_END_BYTES = 22  # the record that ends an archive without a comment
_PIECE_BYTES = 1 << 20

Content = tuple[dict[str, np.ndarray], dict[str, Any]]


class DamagedCheckpoint(InputError):
    """A checkpoint that is missing, or not as it was written."""


def path_in(run_dir: Path) -> Path:
    """The path of a run's checkpoint."""
    return run_dir / "last" / "checkpoint.npz"


def older(path: Path) -> Path:
    """The path of the generation before the file at `path`."""
    return path.with_name(f"{path.stem}.older{path.suffix}")


def generations(run_dir: Path) -> list[Path]:
    """The checkpoints that a run has, the newest first."""
    path = path_in(run_dir)
    return [one for one in (path, older(path)) if one.exists()]


def save(path: Path, arrays: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> None:
    """Writes arrays and state to `path`, and keeps the file that was there (CHECKPOINT-2). StorageError, with nothing changed, if
    that fails."""
    content: dict[str, Any] = {_STATE: np.frombuffer(json.dumps(state).encode(), np.uint8), **arrays}
    with replacing(path) as partial:
        with partial.open("wb") as stream:
            np.savez(stream, **content)
        _seal(partial)
        if path.exists():
            link_or_copy(path, older(path))


def load(path: Path) -> Content:
    """The arrays and the state that `save` wrote. DamagedCheckpoint, or InputError (CHECKPOINT-3)."""
    try:
        with path.open("rb") as stream:
            if _digest(stream) == stream.read():  # whoever wrote the file
                return _content_of_members(stream, path)
            if not _ends_without_comment(stream):
                raise DamagedCheckpoint(f"{path} is damaged (its checksum is wrong)")
            content = _content_of_members(stream, path)
        console.say(f"{path} is of an earlier version of lms3d, without a digest; the checksums of its parts are right")
        return content
    except FileNotFoundError:
        raise DamagedCheckpoint(f"{path} is missing") from None
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror or error}; make it readable, or delete it to go on from an older one, if there is one"
        ) from None


def latest(path: Path) -> tuple[*Content, str]:
    """The arrays and the state of the newest intact generation (CHECKPOINT-2), and what is wrong with a newer one, or ""."""
    try:
        return *load(path), ""
    except DamagedCheckpoint as damage:
        newest = str(damage)
    try:
        arrays, state = load(older(path))
    except DamagedCheckpoint as damage:
        raise InputError(f"{newest}; {damage}; start another run, with another --output") from None
    link_or_copy(older(path), path)
    return arrays, state, newest


def _content(stream: BinaryIO) -> Content:
    stream.seek(0)
    with np.load(stream, allow_pickle=False) as content:
        _require_stored(content.zip.infolist(), stream)
        arrays = {name: content[name] for name in content.files}
    state = json_values.parse(arrays.pop(_STATE).tobytes())
    if not isinstance(state, dict):
        raise DamagedCheckpoint(f"a checkpoint whose state is {str(state)[:60]}")
    return arrays, state


def _require_stored(members: Sequence[zipfile.ZipInfo], stream: BinaryIO) -> None:
    """DamagedCheckpoint if members claim more bytes than the file has: `save` compresses none."""
    claimed, size = sum(one.file_size for one in members), stream.seek(0, os.SEEK_END)
    if claimed > size:
        raise DamagedCheckpoint(f"a checkpoint whose parts claim {claimed:,} bytes in {size:,}")


def _content_of_members(stream: BinaryIO, path: Path) -> Content:
    """The content of an archive. DamagedCheckpoint for any other form; checksums of the members show damage without a digest."""
    try:
        return _content(stream)
    except OSError:
        raise
    except Exception as error:
        raise DamagedCheckpoint(f"{path} is damaged ({error})") from None


def _ends_without_comment(stream: BinaryIO) -> bool:
    """Whether a file ends like an archive without a comment. No single flipped bit makes a sealed archive end like that."""
    stream.seek(-min(_END_BYTES, stream.seek(0, os.SEEK_END)), os.SEEK_END)
    end = stream.read()
    return len(end) == _END_BYTES and end.startswith(b"PK\5\6") and end.endswith(b"\0\0")


def _seal(path: Path) -> None:
    """Ends the archive with its digest (CHECKPOINT-1)."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = bytes(_DIGEST_BYTES)
    with path.open("r+b") as stream:
        digest = _digest(stream)
        stream.seek(-_DIGEST_BYTES, os.SEEK_END)
        stream.write(digest)


def _digest(stream: BinaryIO) -> bytes:
    """The digest of a file without its last `_DIGEST_BYTES`; leaves the stream at the begin of these."""
    digest, left = hashlib.sha256(), max(0, stream.seek(0, os.SEEK_END) - _DIGEST_BYTES)
    stream.seek(0)
    while left and (piece := stream.read(min(left, _PIECE_BYTES))):
        digest.update(piece)
        left -= len(piece)
    return digest.hexdigest().encode()
