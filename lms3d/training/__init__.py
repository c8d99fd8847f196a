"""One training run: its folder, its checkpoint, its callbacks, and the loop around `fit`."""
