"""A command that reports its environment, for test_fork_server; or does as it is asked."""

import json
import os
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path


def found() -> dict:
    """What a process begins with."""
    umask = os.umask(0)
    os.umask(umask)
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv[1:],
        "path": sys.path,
        "main": [sys.modules["__main__"].__name__, sys.modules["__main__"].__spec__.name],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "temporary": tempfile.gettempdir(),
        "stdin": sys.stdin.read(),
        "terminals": [stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "handlers": {number.name: repr(signal.getsignal(number)) for number in signal.Signals},
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "umask": umask,
        "group": os.getpgrp(),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["wait", name]:
            Path(name).touch()
            time.sleep(300)
        case ["exit", code]:
            print("out")
            print("err", file=sys.stderr)
            sys.exit(int(code))
        case ["fail"]:
            raise RuntimeError("a defect")
        case ["imported", name]:
            sys.exit(name in sys.modules)
        case _:
            print(json.dumps(found()))
