"""The rank in the argument fails alone, while rank 0 prepares something long, or while rank 1 waits for a message that rank 0 never
sends."""

from __future__ import annotations

import sys
import time

from lms3d import errors
from lms3d.errors import InputError
from lms3d.ranks import job

LONG_SECONDS = 100.0


def main(alone: str) -> None:
    with job.joined() as world:
        if alone == str(world.rank):
            raise InputError(f"rank {world.rank} cannot write here")
        world.from_chief(lambda: time.sleep(LONG_SECONDS))


if __name__ == "__main__":
    sys.exit(errors.run(lambda: main(*sys.argv[2:])))
