"""The half of the engine that touches TensorFlow: it reads a traced step, measures it and rewrites it."""
