"""The fault shim from Python: builds it, tells it what to do, reads its log. shim.c says how it works."""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
LIBRARY = "libfaults.so"
_RECORD = struct.Struct("<12siqqIIII")
_STATE = struct.Struct("<qqii")


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that was done to a file, or tried."""

    kind: str
    """write, fsync, close, truncate; create, empty, open; rename, link, unlink, mkdir, rmdir."""
    name: str
    """Below the watched folder; of a rename or a link the new one."""
    other: str
    """The old one."""
    offset: int
    size: int
    data: bytes
    error: int
    pid: int

    @property
    def pattern(self) -> str:
        """The name in every run: a part that is drawn at random or counted by the clock is a star."""
        return pattern(self.name)


def built(folder: Path) -> Path:
    """The library, compiled into `folder` by the gcc of this machine."""
    library = folder / LIBRARY
    subprocess.run(
        ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl", "-lpthread"],
        check=True,
    )
    return library


def environment(library: Path, folder: Path, scratch: Path, rule: str = "", clock: str = "") -> dict[str, str]:
    """The variables that make a process watched: everything below `folder` counts from now on.

    scratch: a folder elsewhere, for the log and the state; both begin anew.
    """
    (scratch / "log").write_bytes(b"")
    (scratch / "state").write_bytes(bytes(4096))
    return {
        "LD_PRELOAD": str(library),
        "FAULTS_FOLDER": str(folder.resolve()),
        "FAULTS_LOG": str(scratch / "log"),
        "FAULTS_STATE": str(scratch / "state"),
        "FAULTS_RULE": rule,
        "FAULTS_CLOCK": clock,
    }


def struck(scratch: Path) -> bool:
    """Whether the rule has met its event."""
    return bool(_STATE.unpack_from((scratch / "state").read_bytes())[2])


def events(scratch: Path) -> Iterator[Event]:
    """The events of the log, in their order."""
    content, at = (scratch / "log").read_bytes(), 0
    while at < len(content):
        kind, error, offset, size, name, other, pid, data = _RECORD.unpack_from(content, at)
        parts = []
        at += _RECORD.size
        for length in (name, other, data):
            parts.append(content[at : at + length])
            at += length
        yield Event(
            kind=kind.rstrip(b"\0").decode(), name=os.fsdecode(parts[0]), other=os.fsdecode(parts[1]), offset=offset,
            size=size, data=parts[2], error=error, pid=pid,
        )  # fmt: skip


_RANDOM = re.compile(
    rf"{re.escape(socket.gethostname()[:40])}-[0-9a-f]{{8}}-\d+-[0-9a-f]{{8}}"  # temporary names (`disk.token`)
    r"|^\d+(?=\.bin$)|(?<=events\.out\.tfevents\.).*|(?<=lms3d-swap-)\w{8}"
    r"|(?<![0-9a-f])[0-9a-f]{16,64}(?![0-9a-f])"
)


def pattern(name: str) -> str:
    """The pattern of a name, for fnmatch; see `Event.pattern`."""
    return "/".join(_RANDOM.sub("*", part.replace("[", "?")) for part in name.split("/"))
