"""What all tests share: hypothesis draws the same examples each time in continuous integration, elsewhere new ones; which tests
are slow, and that they come first; and the user's caches are left alone; and a place to measure memory in."""

import contextlib
import gc
import itertools
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import lms3d  # noqa: F401  before TensorFlow, whose kernels it chooses
from lms3d.data import pseudonyms
from tests import durations
from tests.browser import found as found_browser
from tests.caches import private_cache
from tests.fork_server import ONE_WORKER, READ_WHEN_USED, Commands

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # inherited, if a shell started the tests in its background
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # or under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

for variable, value in ONE_WORKER.items():  # for calls in the tests' own process, as for their commands
    os.environ.setdefault(variable, value)

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

RECORD = "--record-durations"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(RECORD, action="store_true", help="write what each test takes to tests/durations.json")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Imports all tests, and with them TensorFlow and Keras, without collecting garbage. What they are made of stays, and later
    collections leave it out: one would else take a quarter of a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before pytest itself looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks slow tests (`tests.durations`; all whole commands; the marker `slow` says it of tests that are too new for that). If
    several workers share the files, the slowest come first: the last to begin would else be waited for by all others."""
    known = durations.recorded()
    for item in items:
        if item.nodeid.startswith("tests/integration/") or durations.is_slow(known, item.nodeid):
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: -durations.file_seconds(known, item.nodeid))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Lists the files that took longest, as many as `--durations` lists tests, and records what each test took if that is asked."""
    number = config.option.durations
    reports = itertools.chain.from_iterable(terminalreporter.stats.values())
    taken = [(one.nodeid, one.when, one.duration) for one in reports if isinstance(one, pytest.TestReport)]
    if config.getoption(RECORD):
        durations.record(taken)
    if number:
        seconds = Counter[str]()
        for nodeid, _, duration in taken:
            seconds[nodeid.split("::")[0]] += duration
        terminalreporter.section(f"slowest {number} files, of {sum(seconds.values()):.0f}s together")
        for file, longest in seconds.most_common(number):
            terminalreporter.write_line(f"{longest:.2f}s {file}")


@pytest.fixture(scope="module", autouse=True)
def nothing_collected_twice() -> None:
    """What earlier modules leave for good, such as the graphs that TensorFlow holds, is left out of later collections, too. In a
    worker that has run for half an hour one would else take seconds. Not at a module's end, where pytest still holds what its last
    test had."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def environment_left_as_it_was() -> Iterator[None]:
    """If a test leaves a variable changed that is read at a start, later commands of its worker are no forks any more."""

    imports = ("KMP_", "TF2_BEHAVIOR", "TPU_ML_", "HDF5_PLUGIN_PATH", "ENABLE_RUNTIME_")  # what libraries set

    def read_at_the_start() -> dict[str, str]:
        free = (*READ_WHEN_USED, "TF_CPP_MIN_LOG_LEVEL", *imports)
        return {name: value for name, value in os.environ.items() if not name.startswith(free)}

    before = read_at_the_start()
    yield
    after = read_at_the_start()
    assert after == before, f"left changed: {sorted(name for name, _ in after.items() ^ before.items())}"


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache folder of all tests: what the machine can do is measured once for all of them. The library of the swap engine is
    the user's own: its name tells its sources, and it takes half a minute."""
    return private_cache(tmp_path_factory.mktemp("session_cache"))


@pytest.fixture(autouse=True)
def own_plans(session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test meets the plans of another, which may have been made by a planner with other constants, or the seconds of its steps,
    which may have run beside other work."""
    monkeypatch.setenv("LMS3D_CACHE", str(session_cache))
    yield
    with contextlib.suppress(FileNotFoundError):  # a test may have put something else in the place of `Path.unlink`
        os.remove(session_cache / "steps.json")
    shutil.rmtree(session_cache / "plans", ignore_errors=True)


@pytest.fixture(scope="session")
def commands() -> Iterator[Commands]:
    """Runs commands, each a process of its own, without waiting for its imports: `commands.run(["-m", "lms3d.plan", ...])`."""
    with Commands() as server:
        yield server


@pytest.fixture(scope="module")
def in_fresh_process(commands: Commands) -> Iterator[Callable[..., Any]]:
    """Calls a function of a module in a process that nothing else ran in: `in_fresh_process(function, *arguments)`.

    TensorFlow's CPU allocator counts whole chunks, and takes a chunk of up to twice the size rather than split it: what a
    step takes at its peak depends on the holes that earlier tests left. One process serves a whole module of tests.
    """
    with contextlib.ExitStack() as stack:

        @cache  # begun by the first call, when the variables of its test are set
        def connection() -> Connection:
            with Listener() as listener:
                stack.callback(commands.start(["-m", "tests.calls", listener.address]).end, 60)
                return stack.enter_context(listener.accept())

        def call(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            connection().send((function, arguments, named))
            if not connection().poll(500):
                raise TimeoutError(f"{function.__name__} takes more than 500 s")
            worked, answer = connection().recv()
            if not worked:
                raise answer
            return answer

        yield call


@pytest.fixture
def names_hidden_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """`--anonymous` in this process ends with the test; its key is of this test. To be asked for behind capsys."""
    monkeypatch.setenv("LMS3D_CACHE", str(private_cache(tmp_path / "cache")))
    for variable in ("LMS3D_ANONYMOUS", "TF_CPP_MIN_LOG_LEVEL"):
        monkeypatch.setenv(variable, "")  # so that what the command sets is taken back
        monkeypatch.delenv(variable)
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, getattr(sys, stream))
    pseudonyms.forget()
    yield
    pseudonyms.forget()


@pytest.fixture
def browser() -> str:
    """The path of a Chromium."""
    return found_browser()
