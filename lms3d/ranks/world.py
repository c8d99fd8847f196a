"""The ranks of a run, seen from one of them. Code asks the world for their number, never whether training is distributed.

A rank is one process, one per device, started by a launcher (`python -m lms3d.launch -np 4 python -m lms3d.train ...`, horovodrun,
mpirun, srun). `job` joins them. All ranks must call the methods that communicate, in the same order. In a world of one rank these
do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from lms3d import errors
from lms3d.errors import InputError
from lms3d.ranks import messages

if TYPE_CHECKING:
    from lms3d.ranks.link import Link

T = TypeVar("T")
_NUMBER_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class World:
    """The ranks of a run, seen from one of them."""

    rank: int = 0
    """The number of this process, 0 <= rank < size."""

    size: int = 1
    """The number of processes."""

    local_rank: int = 0
    """The number of this process among those on the same machine, and of its device."""

    local_size: int = 1
    """The number of processes on this machine, which share its cores and its memory."""

    link: Link | None = field(default=None, repr=False, compare=False)
    """The link to the other ranks; None if there are none."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} is not in a world of size {self.size}; expected 0 <= rank < size")

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0

    @property
    def linked(self) -> Link:
        """The link of a world with several ranks. ValueError if there is none."""
        if self.link is None:
            raise ValueError(
                f"rank {self.rank} of {self.size} has no link to the others; make its world with `job.join`"
            )
        return self.link

    # -- arithmetic ----------------------------------------------------------------------------------------------------

    def share(self, items: Sequence[T]) -> list[T]:
        """The items of this rank: every `size`-th item, from item `rank` on."""
        return list(items[self.rank :: self.size])

    def training_steps(self, items: int, batch_size: int) -> int:
        """The steps of an epoch: the whole number nearest to one pass of all ranks together, at least 1.

        Rounding loses no sample: the stream is endless, and an epoch starts where the last one stopped.
        """
        return max(1, (2 * items + self.size * batch_size) // (2 * self.size * batch_size))

    def validation_steps(self, items: int, batch_size: int) -> int:
        """The number of batches of the rank with the largest share."""
        fullest = -(-items // self.size)
        return -(-fullest // batch_size)

    def learning_rate(self, of_one: float) -> float:
        """The learning rate for the batch of all ranks together, scaled linearly. of_one: the rate for the batch of one rank."""
        return of_one * self.size

    # -- communication -------------------------------------------------------------------------------------------------

    def from_chief(self, make: Callable[[], T]) -> T:
        """Returns or raises on every rank what `make` returns or raises on rank 0, which alone calls it. Works before TensorFlow
        has devices."""
        if self.size == 1:
            return make()
        message, raised = messages.packed_outcome(make) if self.is_chief else (b"", None)
        value, error = messages.unpacked(self.linked.broadcast(message))
        if error is not None:
            raise errors.of_all_ranks(raised or error)
        return value

    def smallest(self, number: int) -> int:
        """The smallest number among all ranks. Works before TensorFlow has devices."""
        if self.size == 1:
            return number
        packed = self.linked.gather_on_chief(messages.packed(number).rjust(_NUMBER_BYTES))
        return self.from_chief(lambda: min(map(_number, packed)))

    def everyone(self, value: T) -> list[T]:
        """The values of all ranks, in the order of the ranks."""
        if self.size == 1:
            return [value]
        return [messages.unpacked(part) for part in self.linked.gather_bytes(messages.packed(value))]

    def mean(self, values: Mapping[str, float], weight: float = 1.0) -> dict[str, float]:
        """The mean over the ranks, weighted by each rank's `weight`; the same bits on all. All must have the same names.

        The values of a rank of weight 0 are ignored, even NaN. If all weights are 0, all ranks have equal weight.
        """
        if self.size == 1 or not values:
            return dict(values)
        names = sorted(values)
        rows = self.linked.gather([weight, *(values[name] for name in names)])
        weights = rows[:, 0] if rows[:, 0].any() else rows[:, 0] + 1
        counted = weights > 0
        means = (weights[counted, None] * rows[counted, 1:]).sum(0) / weights[counted].sum()
        return {name: float(means[names.index(name)]) for name in values}

    def average(self, values: Any) -> Any:
        """The mean over the ranks of a NumPy array of floats, which has the same shape on each."""
        return values if self.size == 1 else self.linked.mean(values)

    def largest(self, values: Sequence[float]) -> list[float]:
        """The largest value among all ranks, position by position. A flag of 1.0 on any rank becomes 1.0 on all."""
        rows = [values] if self.size == 1 else self.linked.gather(values)
        return [float(max(column)) for column in zip(*rows, strict=True)]

    def wait(self) -> None:
        """Returns when all ranks have called it."""
        self.largest([0.0])

    def devices_exist(self) -> None:
        """Notes that TensorFlow has its devices; call it on all ranks then. Messages go through TensorFlow from now on."""
        if self.size > 1:
            self.linked.devices_exist()


def _number(message: bytes) -> int:
    """The whole number in a message. InputError for anything else, which may come from a store that is open to anybody."""
    if type(number := messages.unpacked(message)) is not int:
        raise InputError(
            f"a message to rank 0: found {str(number)[:50]!r}, expected a whole number; start all ranks from one installation, and "
            "keep somebody else from the ports of the launcher (a firewall)"
        )
    return number
