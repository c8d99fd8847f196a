"""`python -S -E tests/forked.py SOCKET WORDS` is `python WORDS`, run by a fork of the server that listens there.

WORDS are `-m MODULE ...`, `-c CODE ...` or a script with its arguments. Signals that can be caught are handed on. The exit code is
the command's, or this process ends by the same signal. If this one is killed, so is the command. It imports little, to start at
once.
"""

import contextlib
import json
import os
import signal
import socket
import struct
import sys

HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main(path, *words):
    told, tells = os.pipe()
    umask = os.umask(0o077)
    os.umask(umask)
    job = json.dumps({"words": words, "cwd": os.getcwd(), "environment": dict(os.environ), "umask": umask}).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(path)
        socket.send_fds(server, [job], [0, 1, 2, tells])
    os.close(tells)
    command = number(told)

    def hand_on(caught, frame):
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(command, caught)

    for each in HANDED_ON:
        signal.signal(each, hand_on)
    code = number(told)
    if code < 0:
        if -code in HANDED_ON:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def number(told):
    """The next of the two that the server tells: process id and exit code."""
    return struct.unpack("i", os.read(told, 4))[0]


if __name__ == "__main__":
    main(*sys.argv[1:])
