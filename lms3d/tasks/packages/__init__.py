"""A trained network as one self-describing file, without code: writing it, and opening it as a run."""
