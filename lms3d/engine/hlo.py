"""The memory that a compiled program takes besides its inputs and results, read from XLA's text. No TensorFlow here.

    ENTRY %main (p: f32[8]) -> f32[8] {
      %a = f32[8]{0} fusion(%p), kind=kLoop, ..        <- instructions in the order in which they run
      ROOT %b = f32[8]{0} fusion(%a), ..
    }

HLO-1  An instruction has memory from its own line to its last reader, and a result to the end. Views and constants have none.
HLO-2  Intermediate results may lie in the memory that results take later. So a program takes the largest sum of live bytes, less
       the size of its results. This is an upper bound: XLA also lets an instruction write into an operand that dies there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

_LINE = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.+?) ([\w\-]+)\((.*)$")
_ARRAY = re.compile(r"([a-z]+\d*)\w*\[([\d,]*)\]")
_READ = re.compile(r"%([\w.\-]+)")
_VIEWS = ("bitcast", "get-tuple-element")
_NO_MEMORY = (*_VIEWS, "parameter", "constant", "tuple")
_ALIGNMENT = 64  # bytes: of a buffer within XLA's temporaries


class _Instruction(NamedTuple):
    name: str
    kind: str
    bytes: int
    reads: tuple[str, ...]


def temporary_bytes(text: str) -> int:
    """The most bytes that intermediate results take at a time (HLO-2). text: an optimised module; ValueError if it is not one."""
    instructions = list(_entry(text))
    source = {one.name: one.reads[0] for one in instructions if one.kind in _VIEWS and one.reads}

    def root(name: str) -> str:
        while name in source:
            name = source[name]
        return name

    last = {root(name): i for i, one in enumerate(instructions) for name in one.reads}
    results = {root(name) for one in instructions[-1:] for name in (one.reads if one.kind == "tuple" else [one.name])}
    sizes: dict[str, int] = {}
    live = most = returned = 0
    for i, one in enumerate(instructions):
        if one.kind not in _NO_MEMORY:
            sizes[one.name] = one.bytes
            live += one.bytes
            most = max(most, live)
            live -= sum(sizes.pop(name, 0) for name in set(map(root, one.reads)) - results if last[name] == i)
            returned += one.bytes if one.name in results else 0
    return max(0, most - returned)


def _entry(text: str) -> Iterator[_Instruction]:
    """The instructions of the entry computation, up to its "}"."""
    _, _, body = text.partition("\nENTRY ")
    for line in [*body.splitlines()[1:], ""]:
        if line.startswith("}"):
            return
        found = _LINE.match(line)
        if found is None:
            raise ValueError(f"XLA's text: found {line[:80]!r}; expected an instruction")
        _, name, shape, kind, rest = found.groups()
        operands = rest.split(")")[0]
        yield _Instruction(name, kind, _bytes(shape), tuple(_READ.findall(operands)))


def _bytes(shape: str) -> int:
    """The bytes of a buffer, such as "f32[2,8]{1,0}", or of a tuple of buffers."""
    total = 0
    for kind, sides in _ARRAY.findall(shape):
        bits = int(re.sub(r"\D", "", kind) or 8)  # "pred" has none
        elements = math.prod(int(side) for side in sides.split(",") if side)
        total += -(-elements * max(8, bits) // 8 // _ALIGNMENT) * _ALIGNMENT
    return total
