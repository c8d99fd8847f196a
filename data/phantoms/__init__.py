"""Artificial data sets in the layouts of the real ones, with the same bytes on every machine."""
