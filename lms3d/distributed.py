"""Who takes part in a training run. One process alone is a world of size 1: all code asks the world and none asks
whether training is distributed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class World:
    """The processes of a run (ranks), seen from one of them."""

    rank: int = 0
    """This process, 0 <= rank < size."""

    size: int = 1
    """Number of processes."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} is not in a world of size {self.size}; expected 0 <= rank < size")

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> list[T]:
        """The items of this rank, every `size`-th from `rank` on, as the case study dealt out its subjects."""
        return list(items[self.rank :: self.size])

    def steps(self, items: int, batch_size: int) -> int:
        """Steps of one pass over `items`: as many on each rank as the fullest rank needs."""
        fullest = -(-items // self.size)
        return -(-fullest // batch_size)

    def learning_rate(self, of_one: float) -> float:
        """The learning rate for the larger batch of all ranks together: linear scaling, as in the case study."""
        return of_one * self.size
