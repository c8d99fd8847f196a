"""Real signals to a real process that is busy in native code, where Python handlers cannot run."""

import contextlib
import signal
import subprocess
import sys

import pytest

# select() with a Python signal handler is retried by Python itself: like a TensorFlow step, it ends when it ends, here
# when it can read a line.
PROGRAM = """
import select, sys
from lms3d.training.interrupt import Interrupt
with Interrupt(lambda: print("announced", flush=True)) as interrupt:
    print("busy", flush=True)
    select.select([sys.stdin], [], [])
    print("asked", interrupt.asked, flush=True)
"""


@pytest.fixture
def start():
    started = []

    def begin() -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == "busy\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_signal_is_answered_at_once_and_the_step_ends(start, number):
    process = start()
    process.send_signal(number)
    assert process.stdout.readline() == "announced\n"
    process.stdin.write("the step ends\n")
    process.stdin.flush()
    assert process.stdout.readline() == "asked True\n"
    assert process.wait() == 0


def test_under_nohup_a_closed_terminal_is_nothing():
    program = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{PROGRAM}"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "busy\n"
        process.send_signal(signal.SIGHUP)
        assert process.communicate("the step ends\n")[0] == "asked False\n"


def test_second_signal_ends_the_process(start):
    process = start()
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "announced\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130


def test_handlers_come_back():
    from lms3d.training.interrupt import Interrupt

    before = signal.getsignal(signal.SIGINT)
    with Interrupt(lambda: None) as interrupt:
        assert signal.getsignal(signal.SIGINT) is not before
        assert not interrupt.asked
    assert signal.getsignal(signal.SIGINT) is before


def test_asked_before_the_watcher_had_its_turn(monkeypatch):
    """As on a busy machine: the step ends, and the thread has not run yet."""
    from lms3d.training.interrupt import Interrupt

    monkeypatch.setattr(Interrupt, "_watch", lambda self, reader: None)
    with Interrupt(lambda: None) as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert interrupt.asked
