"""Real signals to a real process that is busy in native code, where Python handlers cannot run."""

import signal
import subprocess
import sys
import time

import pytest

# select() with a Python signal handler is retried by Python itself: like a TensorFlow step, it ends when it ends.
PROGRAM = """
import select
from lms3d.interrupt import Interrupt
with Interrupt(lambda: print("announced", flush=True)) as interrupt:
    print("busy", flush=True)
    select.select([], [], [], {seconds})
    print("asked", interrupt.asked, flush=True)
"""


@pytest.fixture
def start():
    started = []

    def begin(seconds: float) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(seconds=seconds)], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == "busy\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_is_answered_at_once_and_the_step_ends(start, number):
    process = start(1.5)
    begin = time.monotonic()
    process.send_signal(number)
    assert process.stdout.readline() == "announced\n"
    assert time.monotonic() - begin < 1
    assert process.stdout.readline() == "asked True\n"
    assert process.wait() == 0


def test_second_signal_ends_the_process(start):
    process = start(60)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "announced\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=5) == 130


def test_handlers_come_back():
    from lms3d.interrupt import Interrupt

    before = signal.getsignal(signal.SIGINT)
    with Interrupt(lambda: None) as interrupt:
        assert signal.getsignal(signal.SIGINT) is not before
        assert not interrupt.asked
    assert signal.getsignal(signal.SIGINT) is before
