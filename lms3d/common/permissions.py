"""Who may read what commands write. Files made from patients' data are for the user alone, unless `LMS3D_UMASK` says otherwise."""

from __future__ import annotations

import os
import re

PRIVATE = 0o077
"""The umask of commands: files of mode 0600 in folders of 0700."""


def umask() -> int:
    """The umask that `LMS3D_UMASK` names, such as 007 for a group that works together, else `PRIVATE`. ValueError for other
    text."""
    chosen = os.environ.get("LMS3D_UMASK")
    if not chosen:
        return PRIVATE
    if not re.fullmatch("[0-7]{1,4}", chosen) or int(chosen, 8) & 0o700:
        raise ValueError(
            f"LMS3D_UMASK: found {chosen[:20]!r}; expected octal digits that leave you all rights, such as 007 or 027; "
            "unset it for files that you alone can read"
        )
    return int(chosen, 8)
