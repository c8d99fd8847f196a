"""What to do about the errors of the system, and messages that stay readable."""

from __future__ import annotations

import errno

DISK_ADVICE = {
    **dict.fromkeys(
        (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE), "free some space there, or mend the disk"
    ),
    errno.EFBIG: "raise the limit of this shell (`ulimit -f unlimited`), or choose another disk",
    errno.EMFILE: "raise the limit of this shell (`ulimit -n 1024`)",
    errno.ENFILE: "raise the limit of this machine (`sysctl fs.file-max`), or end other programs",
}
"""Number of an OSError -> what to do about it: a disk is full or fails, or a limit on files is reached."""

PATH_ADVICE = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "ask its owner to let you in, or name another"),
    errno.ENAMETOOLONG: "choose a shorter one",
    errno.ELOOP: "mend the links",
}
"""Number of an OSError -> what to do about it, if the user named the path."""


def one_line(message: str, longest: int) -> str:
    """The message as one line. If it is longer than `longest` characters, its middle is left out: a file may hold a value of any
    length."""
    line = " ".join(message.split())
    return line if len(line) <= longest else f"{line[: longest // 2]} [...] {line[-longest // 4 :]}"
