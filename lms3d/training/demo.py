"""How much training fits into a demonstration: a run on the embedded data without --epochs."""

from __future__ import annotations

from dataclasses import dataclass

MIB, GIB = 2**20, 2**30
TARGET_SECONDS = 14 * 60.0  # of the whole command, data and figures included
LAST_SECONDS = 18 * 60.0  # after which it ends in any case
STAGES = {64: 0.65, 96: 0.85}
"""Resolution -> the share of the time after which its stage ends, in a demonstration at a higher one: 64^3 learns in minutes what
192^3 learns in hours."""
VALIDATION_SHARE = 0.4  # seconds of a validation step / seconds of a training step
FIRST_STEP_SECONDS = 40.0  # tracing and planning, for training and for validation
MOST_EPOCHS = 500
CAUTION = 1.5
"""Promised time over predicted time, since the machine may do other work, too. It applies to the last part alone: a late stage
leaves less time to the following ones, and the time guard ends it at its share of LAST_SECONDS."""


@dataclass(frozen=True, kw_only=True)
class Length:
    """The length of a training."""

    epochs: int
    steps_per_epoch: int
    validation_steps: int
    seconds: float
    """The predicted time for all of it."""


def limit_bytes(voxels: int) -> int:
    """A limit in bytes that these networks do not fit into without LMS from 96^3 voxels on: 8 GiB at 192^3, less below."""
    return max(700 * MIB, round(8 * GIB * voxels / 192**3 / MIB) * MIB)


def promised_seconds(step_seconds: float, time_share: float) -> float:
    """The seconds that a step counts for, in a part of the demonstration that ends after this share of its time."""
    return step_seconds * (CAUTION if time_share == 1 else 1)


def length(
    step_seconds: float, training_steps: int, validation_steps: int, elapsed_seconds: float, epochs: int | None = None,
    target_seconds: float = TARGET_SECONDS,
) -> Length:  # fmt: skip
    """The largest number of whole epochs that fits into the target; if none fits, two short ones (one if a step is very slow).

    training_steps, validation_steps: those of a whole epoch. epochs: what the user asked for; then nothing is cut.
    """
    left = max(target_seconds - elapsed_seconds - FIRST_STEP_SECONDS, 0.0)
    whole_epoch = step_seconds * (training_steps + VALIDATION_SHARE * validation_steps)
    if epochs is not None or left >= whole_epoch:
        count = epochs if epochs is not None else min(MOST_EPOCHS, int(left // whole_epoch))
        return Length(
            epochs=count,
            steps_per_epoch=training_steps,
            validation_steps=validation_steps,
            seconds=count * whole_epoch + FIRST_STEP_SECONDS,
        )
    count = 2 if left >= 2 * step_seconds * (1 + VALIDATION_SHARE) else 1
    steps = min(training_steps, max(1, int(left / count / step_seconds - VALIDATION_SHARE)))
    seconds = count * step_seconds * (steps + VALIDATION_SHARE) + FIRST_STEP_SECONDS
    return Length(epochs=count, steps_per_epoch=steps, validation_steps=1, seconds=seconds)
