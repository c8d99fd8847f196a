"""The callbacks of a training run."""
