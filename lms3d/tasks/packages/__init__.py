"""Packages: a trained network as one self-describing file without code, which is opened like a run."""
