"""Damage to a file: by a disk that flips bits, a copy that stopped half way, a hand that edits, or somebody who means harm."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

Damage = Callable[[bytes, Random], bytes]

VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2**31, 2**63, -(2**70), 10**400, 0.5, 1e308, float("nan"), float("inf"), "", "x", "1", "²",
    "../../outside", "/etc/passwd", "a\0b", "\ud800", "x" * 5000, [], [[]], [1, "a"], {}, {"a": 1}, [{}] * 3,
)  # fmt: skip
"""Values to take the place of any value of a JSON document."""

_TEXTS = (b"", b"\0", b",", b'"', b"\n", b"\r\n\r\n", b"../../outside", b"\xff\xfe", b"nan", b"-1", b"1e400", b"9" * 20,
          b"[" * 100_000, b'{"a":' * 50_000, b"x" * 200_000)  # fmt: skip


def flip(content: bytes, rng: Random) -> bytes:
    """Flips up to four bits."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(content: bytes, rng: Random) -> bytes:
    """Keeps the first part alone."""
    return content[: rng.randrange(len(content) + 1)]


def blank(content: bytes, rng: Random) -> bytes:
    """Puts zeros in the place of some bytes, as after a power cut."""
    start = rng.randrange(len(content) + 1)
    end = min(len(content), start + rng.choice((1, 8, 512, 4096)))
    return content[:start] + bytes(end - start) + content[end:]


def insert(content: bytes, rng: Random) -> bytes:
    """Puts foreign text somewhere."""
    start = rng.randrange(len(content) + 1)
    return content[:start] + rng.choice(_TEXTS) + content[start + rng.choice((0, 0, 1, 20)) :]


def repeat(content: bytes, rng: Random) -> bytes:
    """Writes a part twice."""
    start, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return content[:end] + content[start:end] + content[end:]


def value(content: bytes, rng: Random) -> bytes:
    """Puts another value somewhere in a JSON document, and foreign text into any other file."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return insert(content, rng)
    holder = [document]
    place: Any = holder
    key: Any = 0
    while isinstance(place[key], dict | list) and place[key] and rng.random() < 0.8:
        place = place[key]
        key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
    if isinstance(place, dict) and rng.random() < 0.2:
        del place[key]
    else:
        place[key] = rng.choice(VALUES)
    return json.dumps(holder[0]).encode()


def foreign(content: bytes, rng: Random) -> bytes:
    """A whole file of another kind: nothing, brackets, a pickle that would leave a mark, a huge claim."""
    short = b"", b"null", b"\x1f\x8b\x08\0", b"PK\5\6" + bytes(18), b"\x89PNG\r\n\x1a\n"
    return rng.choice((*short, b"[" * 200_000, pickled(), claim()))


class Mark:
    """Makes a file in the working folder when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("code-was-run"),)


def pickled() -> bytes:
    """An array of objects, as `numpy.save` writes it if pickles are allowed."""
    stream = io.BytesIO()
    np.save(stream, np.array([Mark()], object), allow_pickle=True)
    return stream.getvalue()


def claim() -> bytes:
    """An array that says it has 2^45 numbers."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (1 << 45,)})
    return stream.getvalue()


DAMAGES: tuple[Damage, ...] = (flip, cut, blank, insert, repeat, value, value, value, foreign)


def damage(content: bytes, rng: Random) -> tuple[bytes, str]:
    """The content after one or two damages, and their names."""
    done = [rng.choice(DAMAGES) for _ in range(rng.choice((1, 1, 2)))]
    for one in done:
        content = one(content, rng)
    return content, " and ".join(one.__name__ for one in done)
