"""The file of a package: a zip archive whose members are stored uncompressed, in a fixed order, without times.

    model.json       what the network is, see `lms3d.tasks.packages.description`
    weights/*.npy    one array per variable, in the order of the network: weights/0000.npy, ...
    SHA256SUMS       of all other members, as sha256sum writes them

PACKAGE-1 The same content has the same bytes.
PACKAGE-2 Nothing in it runs: arrays are read without pickles, and nothing is ever unpacked to disk.
PACKAGE-3 Members are not compressed: a member that claims to be large lies in a large file.
PACKAGE-4 Every digest is checked before anything is used. Digests find damage, not intent: whoever writes a file can write digests.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.atomic_files import replacing
from lms3d.common import json_values
from lms3d.errors import InputError

SUFFIX = ".lms3d"
FORMAT = "lms3d package"
VERSION = 1
MODEL, SUMS = "model.json", "SHA256SUMS"
LARGEST_TEXT_BYTES = 4 << 20
MOST_MEMBERS = 10_000
_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest that zip knows
_STORED_BY_UNIX = 3


@dataclass(frozen=True, kw_only=True)
class Content:
    """The content of a package."""

    model: Mapping[str, Any]
    """The content of model.json."""
    weights: Sequence[np.ndarray] = field(repr=False)
    """The arrays, in the order of the network's variables."""


class Damaged(ValueError):
    """A package is damaged; the message says "found this; expected that"."""


def weights_member(number: int) -> str:
    """The name of the member with the variable of this number."""
    return f"weights/{number:04d}.npy"


def write(content: Content, path: Path) -> None:
    """Writes the whole package or nothing. StorageError if the disk fails or is full."""
    members = {MODEL: (json.dumps(dict(content.model), indent=2, allow_nan=False) + "\n").encode()}
    members |= {weights_member(number): _npy(array) for number, array in enumerate(content.weights)}
    members[SUMS] = "".join(f"{_digest(data)}  {name}\n" for name, data in members.items()).encode()
    with replacing(path) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name, _TIME)
            info.create_system = _STORED_BY_UNIX
            info.external_attr = 0o644 << 16
            archive.writestr(info, data)


def read(path: Path) -> Content:
    """The inverse of `write`. InputError, in one line, for anything that is not a whole package of a known version."""
    try:
        return _read(path)
    except Damaged as damage:
        raise InputError(f"{path}: {damage}; get the file again, or make it again with `lms3d.package`") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; give a package that you can read") from None
    except Exception as error:  # zipfile, json and NumPy raise many kinds
        raise InputError(
            f"{path}: found a file that is no package, or only a part of one ({_line(error)}); expected what "
            "`python -m lms3d.package` writes; get it again"
        ) from None


def is_package(path: Path) -> bool:
    """Whether a file says that it is a package, of any version, damaged or not."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _model(archive, _checked_members(archive, path)).get("format") == FORMAT
    except Exception:  # it is something else
        return False


def _read(path: Path) -> Content:
    with zipfile.ZipFile(path) as archive:
        members = _checked_members(archive, path)
        model = _model(archive, members)
        _require_version(model)
        data = {name: archive.read(info) for name, info in members.items()}
    _require_digests(data)
    weights = [name for name in data if name not in (MODEL, SUMS)]
    if weights != [weights_member(number) for number in range(len(weights))]:
        other = next(name for number, name in enumerate(weights) if name != weights_member(number))
        raise Damaged(f"found member {other[:80]!r}; expected {MODEL}, {weights_member(0)}, ..., {SUMS}, in this order")
    return Content(model=model, weights=[_array(name, data[name]) for name in weights])


def _checked_members(archive: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    """Name -> member. Nothing is read yet."""
    infos = archive.infolist()
    members = {info.filename: info for info in infos}
    if len(members) < len(infos) or len(infos) > MOST_MEMBERS:
        raise Damaged(f"found {len(infos)} members, {len(members)} of different names; expected each once")
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size or info.flag_bits & 1:
            raise Damaged(f"found member {info.filename[:80]!r} compressed or encrypted; expected it stored as it is")
    claimed, size = sum(info.file_size for info in infos), path.stat().st_size
    if claimed > size:
        raise Damaged(f"found members that claim {claimed} bytes in a file of {size}; expected a whole file")
    return members


def _model(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]) -> dict[str, Any]:
    info = members.get(MODEL)
    if info is None or info.file_size > LARGEST_TEXT_BYTES:
        what = f"no {MODEL}" if info is None else f"{MODEL} of {info.file_size} bytes"
        raise Damaged(f"found a zip archive with {what}; expected what `python -m lms3d.package` writes")
    model = json_values.parse(archive.read(info))
    if not isinstance(model, dict) or model.get("format") != FORMAT:
        raise Damaged(f"found {MODEL} of another format; expected {FORMAT!r}")
    return model


def _require_version(model: Mapping[str, Any]) -> None:
    version = model.get("format_version")
    if isinstance(version, int) and version > VERSION:
        raise Damaged(f"found a package of format {version}; expected {VERSION} at most: a newer lms3d can read it")
    if version != VERSION:
        raise Damaged(f"found format_version {str(version)[:40]!r}; expected {VERSION}")


def _require_digests(data: Mapping[str, bytes]) -> None:
    """Damaged unless SHA256SUMS names every other member, with its digest."""
    if len(data.get(SUMS, b"")) > LARGEST_TEXT_BYTES or list(data)[-1:] != [SUMS]:
        raise Damaged(f"found no {SUMS} at the end; expected the digests of all members")
    lines = [line.partition("  ") for line in data[SUMS].decode().splitlines()]
    listed = {name: digest for digest, _, name in lines}
    for name in (name for name in data if name != SUMS):
        if listed.get(name) != _digest(data[name]):
            raise Damaged(f"found member {name[:80]!r} with another SHA-256 than {SUMS} says; expected it unchanged")
    if len(lines) != len(data) - 1:
        raise Damaged(f"found {len(lines)} digests in {SUMS}; expected {len(data) - 1}, one for each member")


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.ascontiguousarray(array) if array.ndim else array, allow_pickle=False)
    return stream.getvalue()


def _array(name: str, data: bytes) -> np.ndarray:
    """The array in an .npy file. Its header is compared with its size first: NumPy allocates whatever a header claims."""
    stream = io.BytesIO(data)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise Damaged(f"found member {name} of another .npy version; expected 1.0")
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.kind != "f" or math.prod(shape) * dtype.itemsize != len(data) - stream.tell():
        raise Damaged(f"found member {name} with {dtype} {shape}; expected floating-point numbers that fill it")
    array: np.ndarray = np.load(io.BytesIO(data), allow_pickle=False)
    return array


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:100] or type(error).__name__
