"""TensorFlow starts in rank 1 before lms3d has set its number of threads."""

from __future__ import annotations

import sys

from lms3d import errors
from lms3d.device import startup
from lms3d.ranks import job


def main() -> None:
    with job.joined() as world:
        if world.rank == 1:
            import tensorflow as tf

            tf.constant(1.0)
        startup.start_tensorflow(world=world)


if __name__ == "__main__":
    sys.exit(errors.run(main))
