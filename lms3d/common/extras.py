"""The packages that a small installation lacks, and what to say when one is missing."""

from __future__ import annotations

IMAGING = frozenset(
    {"google_crc32c", "joblib", "markdown_it", "matplotlib", "nibabel", "nilearn", "pandas", "PIL", "sklearn", "SimpleITK",
     "surface_distance", "tensorboard"}
)  # fmt: skip
"""The names under which the packages of the extra `imaging` are imported."""


def advice(error: Exception) -> str | None:
    """What to do about a missing package of an extra; None for any other error."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if name not in IMAGING:
        return None
    return (
        f"the package {name} is not installed; expected those of the extra `imaging`: pip install 'lms3d[imaging]', or in a "
        "checkout pip install -e '.[imaging]'"
    )
