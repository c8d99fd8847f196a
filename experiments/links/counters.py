"""Names of what an emulated link counts besides `lms3d.engine.tiers.base.COUNTERS`."""

COPY_SECONDS = "copy_processor_seconds"
"""Of copies both ways, which a device would make by itself."""
STEP_SECONDS = "step_processor_seconds"
"""Of the whole process."""
