"""One module per question: it runs the real commands, keeps what they measured, and writes a table, and a figure if a page shows
it."""

from pathlib import Path

import lms3d  # before TensorFlow, whose kernels it chooses

ROOT = Path(lms3d.__file__).parents[1]
"""The top of the project, where its modules can be run from."""
