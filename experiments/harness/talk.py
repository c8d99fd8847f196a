"""The child's side of the talk with its parent (see `child`), and the memory of a process. No TensorFlow here."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from lms3d.errors import DoesNotFit
from lms3d.training.out_of_memory import is_out_of_memory

SAMPLE_SECONDS = 0.005


class Talk:
    """JSON lines to the parent. Whatever else the process prints goes to stderr from here on."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def say(self, **values: Any) -> None:
        print(json.dumps(values), file=self._out, flush=True)

    def asked(self) -> bool:
        """Waits for the parent; whether it wants a step."""
        return sys.stdin.readline().strip() == "step"

    @contextmanager
    def explained(self) -> Iterator[None]:
        """An exception in the block becomes the last line."""
        try:
            yield
        except DoesNotFit as error:
            self.say(error="does not fit", detail=str(error), smallest_limit_bytes=error.smallest_limit_bytes)
        except Exception as error:
            kind = "out of memory" if is_out_of_memory(error) else "failed"
            self.say(error=kind, detail=f"{type(error).__name__}: {error}"[:500])
            if kind == "failed":
                raise


def asked() -> Any:
    """What the parent told this process at its start."""
    return json.loads(sys.argv[1])


class Resident:
    """Anonymous memory of this process above the present: sampled, since the kernel's own peak counts files, too.

    whole_bytes: the most so far with pages of files.
    """

    def __init__(self) -> None:
        self._process, self.whole_bytes = psutil.Process(), 0
        self.idle_bytes = self._now()
        self._peak = self.idle_bytes
        threading.Thread(target=self._watch, daemon=True).start()

    def take_peak(self) -> int:
        """The most above idle since the last call."""
        peak, self._peak = self._peak, self._now()
        return peak - self.idle_bytes

    def _watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(SAMPLE_SECONDS):
            self._peak = max(self._peak, self._now())

    def _now(self) -> int:
        memory = self._process.memory_info()
        self.whole_bytes = max(self.whole_bytes, memory.rss)
        return int(memory.rss - getattr(memory, "shared", 0))
