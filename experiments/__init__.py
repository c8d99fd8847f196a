"""One module per question: it runs the real commands, keeps what they measured, and writes a table and a figure."""

from pathlib import Path

import lms3d  # noqa: F401  before TensorFlow, whose kernels it chooses

ROOT = Path(__file__).parents[1]
"""The top of the project, where its modules can be run from."""
