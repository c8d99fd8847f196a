"""One module per question: it runs the real commands, keeps what they measured, and writes a table and a figure."""

import lms3d  # noqa: F401  before TensorFlow, whose kernels it chooses
