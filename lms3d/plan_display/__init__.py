"""What `python -m lms3d.plan` shows."""
