"""A command from a fork begins, writes and ends like one of `python -m`."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests import fork_server
from tests.fork_server import ROOT
from tests.stress.harness import alive

pytestmark = pytest.mark.slow
PROBE = ["-m", "tests.fork_probe"]
FORKED, FRESH = 1, 0
"""Exit codes of `imported tensorflow`."""


def test_it_finds_what_a_fresh_process_finds(commands, tmp_path):
    environment = {
        **os.environ,
        **fork_server.ONE_WORKER,
        "PYTHONPATH": str(ROOT),
        "LMS3D_CACHE": "somewhere",
        "TMPDIR": str(tmp_path),
    }
    asked = [*PROBE, "tell", "--all"]
    done = commands.run(asked, cwd=tmp_path, env=environment)
    fresh = subprocess.run(
        [sys.executable, *asked],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    found, expected = json.loads(done.stdout), json.loads(fresh.stdout)
    for each in (found, expected):  # libraries set some themselves
        each["environment"] = {name: value for name, value in each["environment"].items() if name in environment}
    assert found == expected
    assert (done.returncode, done.stderr) == (0, "")


def test_code_among_its_words_runs_as_in_a_fresh_process(commands, tmp_path):
    code = "import sys; print(sys.argv, sys.orig_argv[1:], sys.path, __name__, sys.modules[__name__].__dict__ is globals())"
    asked, environment = ["-c", code, "more"], {**os.environ, **fork_server.ONE_WORKER, "PYTHONPATH": str(ROOT)}
    done = commands.run(asked, cwd=tmp_path, env=environment)
    fresh = subprocess.run([sys.executable, *asked], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, fresh.stdout, "")
    imported = "import sys; sys.exit('tensorflow' in sys.modules)"
    assert commands.run(["-c", imported]).returncode == FORKED
    done = commands.run(["-c", "1 / 0"])
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "ZeroDivisionError: division by zero")


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o027])
def test_its_umask_is_that_of_the_test_not_that_of_the_one_the_server_began_in(commands, umask):
    before = os.umask(umask)
    try:
        assert json.loads(commands.run([*PROBE, "tell"]).stdout)["umask"] == umask
    finally:
        os.umask(before)


def test_what_it_writes_and_its_exit_code(commands):
    done = commands.run([*PROBE, "exit", 3])
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
    done = commands.run([*PROBE, "exit", 0], merged=True)
    assert (done.returncode, sorted(done.stdout.split()), done.stderr) == (0, ["err", "out"], "")
    done = commands.run(["-c", "import atexit, sys; atexit.register(print, 'last'); print('first'); sys.exit('why')"])
    assert (done.returncode, done.stdout, done.stderr) == (1, "first\nlast\n", "why\n")
    done = commands.run([*PROBE, "fail"])
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "RuntimeError: a defect")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_reaches_it(commands, tmp_path, number):
    command = commands.start([*PROBE, "wait", tmp_path / "begun"])
    until = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert command.poll() is None
    command.send_signal(number)
    assert command.end(60).returncode == -number


def test_one_that_takes_too_long_is_killed(commands, tmp_path):
    command = commands.start([*PROBE, "wait", tmp_path / "begun"])
    with pytest.raises(subprocess.TimeoutExpired):
        command.end(0.1)
    assert command.poll() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("variables", "code"),
    [
        ({}, FORKED),
        ({"LMS3D_CACHE": "other", "TF_CPU_ALLOCATOR_USE_BFC": "1"}, FORKED),
        ({"TF_CPP_MIN_LOG_LEVEL": "3"}, FORKED),
        ({"TF_CPP_MIN_LOG_LEVEL": "0"}, FRESH),
        ({"TF_ENABLE_ONEDNN_OPTS": "0"}, FRESH),
        ({"OMP_NUM_THREADS": "1"}, FRESH),
        ({"KERAS_BACKEND": "numpy"}, FRESH),
    ],
    ids=lambda value: "+".join(value) or "none" if isinstance(value, dict) else "",
)
def test_what_is_read_at_the_start_asks_for_a_fresh_process(commands, variables, code):
    plain = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    assert commands.run([*PROBE, "imported", "tensorflow"], env={**plain, **variables}).returncode == code


def test_threads_that_a_fork_would_lose_are_refused():
    """BLAS has threads of its own, which end before a fork."""
    code = "import threading, time; from tests import fork_server; {}; fork_server.require_one_thread()"
    blas = "import numpy as np; np.ones((500, 500)) @ np.ones((500, 500))"
    thread = "threading.Thread(target=time.sleep, args=(5,), daemon=True).start()"
    for more, words in ((blas, ""), (thread, "RuntimeError: 2 threads: a fork would lose them")):
        done = subprocess.run([sys.executable, "-c", code.format(more)], cwd=ROOT, capture_output=True, text=True)
        assert words in done.stderr
        assert (done.returncode == 0) == (not words)


def started(commands, *words, **how):
    """What another program starts that was given `commands.python()`."""
    return subprocess.Popen([*commands.python(), *map(str, words)], text=True, **how)


def test_another_program_starts_forks_too(commands, tmp_path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # A package may have brought a folder called tests, which would hide ours.
    environment = {**os.environ, "LMS3D_CACHE": "here", "PYTHONPATH": str(ROOT)}
    process = started(commands, *PROBE, "tell", cwd=tmp_path, env=environment, **pipes)
    output, error = process.communicate("said")
    assert process.returncode == 0, error
    found = json.loads(output)
    assert (found["stdin"], found["folder"], found["environment"]["LMS3D_CACHE"]) == ("said", str(tmp_path), "here")
    process = started(commands, *PROBE, "exit", 3, **pipes)
    assert (*process.communicate(), process.returncode) == ("out\n", "err\n", 3)
    assert started(commands, *PROBE, "imported", "tensorflow").wait() == FORKED
    (tmp_path / "beside.py").write_text("word = 'found'")
    (tmp_path / "script.py").write_text("import sys; from beside import word; print(word, sys.argv, __name__)")
    process = started(commands, tmp_path / "script.py", "more", **pipes)
    assert process.communicate() == (f"found {[str(tmp_path / 'script.py'), 'more']} __main__\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_with_what_another_program_has_started_the_fork_ends(commands, tmp_path, number):
    code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(300)"
    process = started(commands, "-c", code, tmp_path / "begun", stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not ((tmp_path / "begun").exists() and (tmp_path / "begun").read_text()) and time.monotonic() < until:
        time.sleep(0.01)
    fork = psutil.Process(int((tmp_path / "begun").read_text()))
    process.send_signal(number)
    assert process.wait(60) == -number
    psutil.wait_procs([fork], timeout=60)
    assert not alive(fork)
