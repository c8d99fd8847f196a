"""The machine that training runs on: its memory and limits, a CPU's memory pool, the start of TensorFlow."""
