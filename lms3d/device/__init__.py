"""The machine that training runs on: memory and its limits, the pool of a CPU, how TensorFlow starts."""
