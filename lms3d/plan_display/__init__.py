"""The tables, figures and files of `python -m lms3d.plan`."""
