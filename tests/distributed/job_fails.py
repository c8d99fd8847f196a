"""Rank 0 finds an error in the input before anything is started."""

from __future__ import annotations

import sys

from lms3d import distributed, errors
from lms3d.errors import InputError


def prepare() -> None:
    raise InputError("no such folder")


def main() -> None:
    with distributed.joined() as world:
        world.from_chief(prepare)


if __name__ == "__main__":
    sys.exit(errors.run(main))
