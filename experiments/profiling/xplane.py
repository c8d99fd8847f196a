"""What TensorFlow's profiler wrote, an XSpace (`*.xplane.pb`), as events by thread.

    XSpace -> planes: "/host:CPU", "/device:GPU:0", ..
                -> lines: threads of the host, "Stream #7(Compute)" of a GPU -> events: name, offset, duration, statistics

Names and values stand in tables of the plane. TensorFlow ships the protobuf classes, without a public name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lms3d import console
from lms3d.errors import InputError

_HOST, _GPU, _STREAM = "/host:CPU", re.compile(r"/device:GPU:\d+"), "Stream #"


@dataclass(frozen=True, eq=False)
class ProfileEvent:
    """Picoseconds since the profile began."""

    name: str
    begin: int
    end: int
    raw: Any = field(repr=False)
    plane: Any = field(repr=False)

    @cached_property
    def values(self) -> dict[str, Any]:
        """The event's statistics by name."""
        names = self.plane.stat_metadata
        kinds = [(stat, stat.WhichOneof("value")) for stat in self.raw.stats]
        return {
            names[stat.metadata_id].name: names[stat.ref_value].name if kind == "ref_value" else getattr(stat, kind)
            for stat, kind in kinds
        }


@dataclass(frozen=True, eq=False)
class Thread:
    """A thread of the host or a stream of a device. events: in the order of time; what contains others comes before them."""

    name: str
    events: Sequence[ProfileEvent]


def newest(folder: Path) -> Path:
    """The latest profile in a folder or below it. InputError if there is none."""
    found = sorted(folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise InputError(f"{folder}: found no *.xplane.pb, TensorFlow's profile; train with --profile EPOCH:FIRST-LAST")
    return found[-1]


def load(path: Path) -> Any:
    """The XSpace message in a file. InputError if it holds something else."""
    from google.protobuf.message import DecodeError

    with console.quiet_native_log():
        from tensorflow.tsl.profiler.protobuf import xplane_pb2

    try:
        return xplane_pb2.XSpace.FromString(path.read_bytes())
    except DecodeError as error:
        raise InputError(f"{path}: {error}; expected a profile of TensorFlow, profile again") from None


def host_threads(space: Any) -> list[Thread]:
    """The threads of the machine itself."""
    return [_thread(plane, line) for plane in space.planes if plane.name == _HOST for line in plane.lines]


def gpu_streams(space: Any) -> tuple[str, list[Thread]] | None:
    """The name and the streams of the first GPU; None if none took part. Its other lines repeat these in other words."""
    gpus = sorted((p for p in space.planes if _GPU.match(p.name) and p.lines), key=lambda plane: plane.name)
    if not gpus:
        return None
    return gpus[0].name, [_thread(gpus[0], line) for line in gpus[0].lines if line.name.startswith(_STREAM)]


def _thread(plane: Any, line: Any) -> Thread:
    start, names = line.timestamp_ns * 1000, plane.event_metadata
    events = [
        ProfileEvent(names[one.metadata_id].name, begin := start + one.offset_ps, begin + one.duration_ps, one, plane)
        for one in line.events
    ]
    return Thread(line.name or str(line.id), sorted(events, key=lambda event: (event.begin, -event.end)))
