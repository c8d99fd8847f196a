"""How long a demonstration trains: a run on the embedded data without --epochs, which ends by the clock."""

from __future__ import annotations

MIB, GIB = 2**20, 2**30
END_SECONDS = 17.5 * 60
"""The seconds after its start at which a demonstration ends its training. Figures follow: all takes less than 20 minutes."""
STAGES = {64: 0.35, 96: 0.3}
"""Resolution -> the share of the time left that its stage takes, in a demonstration at a higher one: 64^3 learns in minutes what
192^3 learns in hours."""
VALIDATION_STEP = 0.4
"""Seconds of a validation step / seconds of a training step."""
VALIDATION_SHARE = 0.2
"""The share of a part's time that a validation may take; with slow steps it sees fewer cases."""
FIRST_STEP_SECONDS = 20.0
"""The seconds that the first step takes longer than the others: it is traced and planned. So is the first validation step."""
MOST_EPOCHS = 500


def limit_bytes(voxels: int) -> int:
    """A limit in bytes that these networks do not fit into without LMS from 96^3 voxels on: 4 GiB at 192^3, where isensee2017 needs
    7.6, and less below."""
    return max(700 * MIB, round(4 * GIB * voxels / 192**3 / MIB) * MIB)


def seconds_left(elapsed_seconds: float, share: float) -> float:
    """The seconds that a part of a demonstration trains for: a share of what is left when it begins."""
    return max(share * (END_SECONDS - elapsed_seconds), 0.0)


def validation_steps(step_seconds: float, available: int, seconds: float) -> int:
    """The validation steps of an epoch, at least 1 and at most `available`, in a part that trains for `seconds`."""
    return max(1, min(available, int(VALIDATION_SHARE * seconds / (VALIDATION_STEP * step_seconds))))


def steps(step_seconds: float, training_steps: int, validation_steps: float, seconds: float) -> int:
    """The predicted number of training steps, at least 1, of a part that trains for `seconds` and validates after each epoch."""
    share = training_steps / (training_steps + VALIDATION_STEP * validation_steps)
    fitting = int(share * (seconds - 2 * FIRST_STEP_SECONDS) / step_seconds)
    return max(1, min(fitting, MOST_EPOCHS * training_steps))
