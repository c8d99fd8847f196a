"""The plan: what a rewrite will insert, as a frozen, comparable value that reads and writes JSON. No TensorFlow here.

    before                      after  Swap(tensor a, consumers (z,), trigger f3)
    a ---> f1 -> ... -> f4      a ---> f1 -> f2 -> f3 -> f4
     \\                  |        \\-> lms/swap_out/a          \\
      \\-------------> z          ~~> lms/swap_in/a/0 ------> z        (f3 ..control..> lms/swap_in/a/0)

    before                      after  Recompute(op r, inputs, consumers (z,), trigger f3)
    c -> r -> f1 -> .. -> z     c -> r -> f1 -> f2 -> f3 -> f4 -> z
          \\-------------/        \\-> lms/recompute/r/0 ---------/      (f3 ..control..> lms/recompute/r/0)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

SCOPE = "lms/"


def _flat(tensor: str) -> str:
    """A tensor's name as part of an op's name: `"split:1"` -> `"split>1"`; the index 0 is left out. TensorFlow makes names such as
    `"split_1"` itself, for a second op of that name, but none with `>`."""
    op, _, index = tensor.rpartition(":")
    return op if index == "0" else f"{op}>{index}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SwapOut:
    """Copies `tensor` to the tier as soon as it exists. waiters: ops that may only start when the copy is complete.

    until: ops after which the original's memory is given back; not before, even if the copy is complete earlier.
    """

    tensor: str
    bytes: int
    waiters: tuple[str, ...] = ()
    until: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{SCOPE}swap_out/{_flat(self.tensor)}"

    @property
    def hold(self) -> str:
        """The name of the op that holds the original's memory."""
        return f"{SCOPE}hold/{_flat(self.tensor)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SwapIn:
    """Brings `tensor` back when `triggers` have run, and gives it to `consumers` instead of the original.

    consumers: ops of the step, or recomputed copies by their inserted names. through: (consumer, name) of consumers that read the
    tensor under another name, behind an identity. followers: ops, or other swap-ins, that may only start when this one has taken
    its memory. mapped: it takes none, since the tensor is read where the swap-out wrote it.
    """

    tensor: str
    copy: int
    consumers: tuple[str, ...]
    triggers: tuple[str, ...]
    through: tuple[tuple[str, str], ...] = ()
    followers: tuple[str, ...] = ()
    mapped: bool = False

    @property
    def name(self) -> str:
        return f"{SCOPE}swap_in/{_flat(self.tensor)}/{self.copy}"

    @property
    def output(self) -> str:
        return f"{self.name}:0"


@dataclass(frozen=True, kw_only=True, slots=True)
class Recompute:
    """Runs `op` once more when `triggers` have run; `consumers` read `tensor` from the copy instead of the original.

    through: see `SwapIn`.
    """

    op: str
    tensor: str
    copy: int
    consumers: tuple[str, ...]
    triggers: tuple[str, ...]
    through: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return f"{SCOPE}recompute/{self.op}" + (f"/{self.copy}" if self.copy else "")

    @property
    def output(self) -> str:
        return f"{self.name}:{self.tensor.rpartition(':')[2]}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All decisions for one step. Tensors that are not named stay where they are.

    control_edges: (before, after) names of ops, original or inserted: the planned order of the large ops. planner and parameters
    say how the plan was made.
    """

    swap_outs: tuple[SwapOut, ...] = ()
    swap_ins: tuple[SwapIn, ...] = ()
    recomputes: tuple[Recompute, ...] = ()
    control_edges: tuple[tuple[str, str], ...] = ()
    planner: str = "none"
    parameters: Mapping[str, Any] | None = None

    @property
    def empty(self) -> bool:
        """True if the rewrite would change nothing."""
        return not (self.swap_outs or self.recomputes or self.control_edges)

    @property
    def swapped_out_bytes(self) -> int:
        """Bytes per step that leave the device."""
        return sum(s.bytes for s in self.swap_outs)

    @property
    def swapped_in_bytes(self) -> int:
        """Bytes per step that are copied back; a tensor that returns twice counts twice."""
        size = {s.tensor: s.bytes for s in self.swap_outs}
        return sum(size[s.tensor] for s in self.swap_ins if not s.mapped)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form; `from_dict` gives back an equal plan."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        def tuples(record: Mapping[str, Any]) -> dict[str, Any]:
            listed = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}
            if "through" in listed:
                listed["through"] = tuple((consumer, name) for consumer, name in listed["through"])
            return listed

        return cls(
            swap_outs=tuple(SwapOut(**tuples(s)) for s in values["swap_outs"]),
            swap_ins=tuple(SwapIn(**tuples(s)) for s in values["swap_ins"]),
            recomputes=tuple(Recompute(**tuples(r)) for r in values["recomputes"]),
            control_edges=tuple((a, b) for a, b in values["control_edges"]),
            planner=values["planner"],
            parameters=values["parameters"],
        )
