"""Removes a folder when this process is gone, however it went: killed ranks leave nothing behind.

A tiny shell process holds the reading end of a pipe, of which this process alone has the writing end. The kernel closes that
when the process ends. Launchers end a job by signals to the children of a process and then to it: the shell is an orphan
from the start, and heeds no signal that can be heeded. Where all processes of a job are killed at once (a batch system's
group, a machine that fails) the next run on the machine finds the folder (`tiers.remove_orphans`).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

_SCRIPT = 'exec 3<&0; (trap "" HUP INT TERM; read -r _ <&3; rm -rf -- "$1") </dev/null >/dev/null 2>&1 &'


def remove_after(folder: Path) -> int:
    """Returns a file to be closed by `os.close`: when it is, and be it by the end of the process, `folder` goes.

    Where no process can be started the folder stays until `remove_orphans` finds it.
    """
    reader, writer = os.pipe()  # not inherited by programs that this process starts
    try:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = ["/bin/sh", "-c", _SCRIPT, "lms3d-lifeline", str(folder)]
            subprocess.run(command, stdin=reader, start_new_session=True, cwd="/", check=False, timeout=10)
    finally:
        os.close(reader)
    return writer
