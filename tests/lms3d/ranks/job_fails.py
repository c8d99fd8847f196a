"""Rank 0 finds an error in the input before anything is started: an error of all ranks. With a RANK as argument, that rank
alone fails, while rank 0 prepares something long, or while rank 1 waits for what rank 0 will never send."""

from __future__ import annotations

import sys
import time

from lms3d import errors
from lms3d.errors import InputError
from lms3d.ranks import job

LONG_SECONDS = 100.0


def prepare() -> None:
    raise InputError("no such folder")


def main(alone: str = "") -> None:
    with job.joined() as world:
        if alone == str(world.rank):
            raise InputError(f"rank {world.rank} cannot write here")
        world.from_chief(prepare if not alone else lambda: time.sleep(LONG_SECONDS))


if __name__ == "__main__":
    sys.exit(errors.run(lambda: main(*sys.argv[2:])))
