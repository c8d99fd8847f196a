"""Ctrl-C that lets the current step finish.

    with Interrupt(announce) as interrupt:
        for step in steps:
            run(step)
            if interrupt.asked: save and leave

A TensorFlow step can take minutes, and Python runs signal handlers only between steps. So a thread waits at the signal wake-up
pipe. It answers the user at once, and ends the process at the second signal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import TracebackType

from lms3d.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""A batch system sends SIGTERM before it takes the machine away; a terminal that is closed sends SIGHUP, unless nohup is used."""


class Interrupt:
    """Context manager; `asked` turns true at the first SIGINT, SIGTERM or SIGHUP. Outside the main thread it does nothing."""

    def __init__(self, announce: Callable[[], None]) -> None:
        self.asked = False
        self._announce = announce
        self._resources: contextlib.ExitStack | None = None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            with contextlib.ExitStack() as stack:
                self._watch_signals(stack)
                self._resources = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._resources is not None:
            self._resources.close()

    def _watch_signals(self, stack: contextlib.ExitStack) -> None:
        reader, writer = os.pipe()
        stack.callback(os.close, reader)
        os.set_blocking(writer, False)
        watcher = threading.Thread(target=self._watch, args=(reader,), daemon=True, name="interrupt")
        watcher.start()
        stack.callback(watcher.join)
        stack.callback(os.close, writer)  # the watcher reads the end of the pipe and returns
        stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(writer, warn_on_full_buffer=False))
        for number in _SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            stack.callback(signal.signal, number, signal.signal(number, self._ask))

    def _ask(self, *_: object) -> None:
        """Handles the signal, too: on a busy machine the watcher may run only after the step has ended."""
        self.asked = True

    def _watch(self, reader: int) -> None:
        announced = False
        while byte := os.read(reader, 1):
            if byte[0] not in _SIGNALS:
                continue
            if announced:
                os._exit(Interrupted.exit_code)
            announced = self.asked = True
            self._announce()
