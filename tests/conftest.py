"""What all tests share: in continuous integration hypothesis draws the same examples each time, elsewhere new ones."""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
