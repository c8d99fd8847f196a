"""Artificial data sets in the layout of the real ones, the same bytes on every machine."""
