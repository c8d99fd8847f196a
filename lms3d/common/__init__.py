"""What `lms3d` and `data` share: whole files, JSON of others, and what to do about the system's errors. It imports neither."""
