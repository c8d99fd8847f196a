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

SLOW = {
    "integration/": 15,  # whole commands
    "stress/test_files.py": 30,
    "lms3d/ranks/test_launchers.py": 80,
    "lms3d/ranks/test_store.py": 30,
    "lms3d/ranks/test_ranks_networks.py": 30,
    "integration/test_train_ranks.py": 130,
    "integration/test_train.py": 200,
    "lms3d/ranks/test_failure.py": 120,
    "lms3d/ranks/test_elastic.py": 90,
    "lms3d/ranks/test_ranks_training.py": 100,
    "lms3d/engine/test_models.py": 30,
    "lms3d/engine/test_any_model.py": 45,
    "integration/test_train_chexnet.py": 25,
    "experiments/test_scaling_ranks.py": 60,
    "lms3d/engine/planners/test_every_limit.py": 60,
    "data/phantoms/test_brains.py::test_the_same_seed": 50,
    "lms3d/ranks/test_ranks.py": 30,
    "lms3d/engine/test_chexnet_lms.py": 20,
    "lms3d/engine/test_memory_saved.py": 30,
    "experiments/test_lms_overhead.py::test_a_real_child": 12,
    "lms3d/device/test_cpu_pool.py": 30,
    "lms3d/engine/test_two_devices.py": 25,
    "lms3d/device/test_memory.py::test_hard_limit": 7,
    "lms3d/device/test_memory.py::test_the_pool": 7,
    "lms3d/device/test_memory.py::test_too_late": 5,
    "lms3d/test_beside_others.py": 40,  # each in a process of its own
    "lms3d/test_predict.py::test_the_command_works": 10,
    "lms3d/test_package.py": 65,
    "models/test_models.py::test_a_saved_model_loads": 12,
    "models/test_chexnet.py::test_imagenet_weights": 20,
    "models/test_chexnet.py::test_weights_of_an_earlier_run": 10,
    "models/test_chexnet.py::test_files_that_cannot": 4,
    "data/phantoms/test_brains.py::test_one_case_on_the_full_grid": 8,
    "experiments/test_input_pipeline.py::test_real_ranks": 7,
    "deploy/test_launchers.py::test_the_real_horovodrun": 5,
    "deploy/test_horovod_build.py::test_the_wheel_of_this_machine": 6,
    "lms3d/keras_step/test_keras_own_tests.py": 50,
    "lms3d/keras_step/test_any_keras.py": 45,
    "lms3d/keras_step/test_closing_the_loop.py": 70,
    "lms3d/keras_step/test_callback.py": 30,
    "lms3d/keras_step/test_slabs.py": 40,
    "integration/test_train_slabs.py": 60,
    "integration/test_predict_slabs.py": 40,
    "lms3d/keras_step/test_attachment.py::test_neither_a_failed": 11,
    "lms3d/engine/native/": 40,  # compilers
    "lms3d/engine/tiers/test_stream.py": 20,
    "lms3d/engine/tiers/test_stream_check.py": 8,
    "lms3d/engine/tiers/test_stream_mutations.py": 5,
    "lms3d/engine/tiers/test_stream_networks.py": 80,
    "lms3d/engine/tiers/test_tiers.py::test_a_killed_process": 8,
    "lms3d/engine/passes/test_joins.py::test_no_edge": 40,
    "lms3d/engine/passes/test_joins.py::test_the_passes": 12,
    "lms3d/engine/passes/test_joins.py::test_they_would": 5,
    "lms3d/engine/planners/test_never_worse_than_tflms.py": 8,
    "models/test_layers.py::test_up_sampling": 7,
    "models/test_models.py::test_training": 5,
    "lms3d/test_evaluate.py::test_truth_with_names": 7,
    "lms3d/test_evaluate.py::test_low_resolution": 4,
    "lms3d/training/test_trainer.py": 30,
    "lms3d/training/callbacks/test_bit_record.py": 12,
    "lms3d/tasks/test_chexnet.py::test_a_folder": 4,
    "lms3d/tasks/test_chexnet.py::test_a_package": 9,
    "lms3d/tasks/test_own_task.py::test_it_trains": 5,
    "lms3d/test_plan.py::test_too_small": 4,
    "data/phantoms/test_same_everywhere.py::test_other_machines": 12,
    "experiments/test_input_pipeline.py::test_speeds": 5,
    "experiments/test_resnet50_benchmark.py::test_a_real_rank": 8,
    "experiments/test_scaling.py": 15,
    "experiments/test_links.py": 12,
    "experiments/test_emulated_links.py": 20,
    "experiments/test_gpu_case_study.py::test_rehearsal": 90,
    "stress/test_soak.py": 40,
    "stress/test_inputs.py": 25,
    "stress/test_harness.py": 15,
    "stress/test_functions.py": 25,
    "stress/test_steps.py": 30,
    "lms3d/keras_step/test_long_runs.py": 25,
    "integration/test_train_arms.py": 85,
    "integration/test_guides.py": 90,
    "integration/test_tutorial.py": 45,
    "integration/test_any_organ.py": 45,
    "integration/test_decathlon.py": 20,
    "integration/test_train_elastic.py": 50,
    "experiments/test_decisive_comparison.py::test_with_real_commands": 60,
    "experiments/test_decisive_comparison.py::test_two_real_ranks": 25,
    "experiments/test_floors.py": 30,
    "lms3d/keras_step/test_precision.py": 110,
    "lms3d/engine/slabs/test_precision.py::test_isensee2017": 25,
    "lms3d/engine/slabs/test_networks.py::test_a_densenet": 15,
    "test_fork_server.py": 20,
}
"""What takes more than three seconds, in seconds on one of two busy cores, about: folders, files and single tests, as the begin of
their names within tests/. The marker `slow` says it of others."""

LONG = {
    "lms3d/engine/slabs/test_rules.py": 100,
    "lms3d/engine/slabs/test_networks.py": 40,
    "lms3d/engine/planners/test_planner.py": 40,
    "lms3d/test_evaluate_plain.py": 20,
    "lms3d/ranks/test_collectives.py": 35,
    "lms3d/test_plan_machine.py": 40,
    "lms3d/training/test_arms.py": 40,
    "lms3d/scoring/test_scripts.py": 10,
    "lms3d/engine/tiers/test_truncated_files.py": 30,
    "models/test_instance_norm.py": 30,
    "experiments/test_compiled_steps.py": 30,
    "lms3d/test_anonymous.py": 20,
    "lms3d/engine/test_plan_cache.py": 20,
    "lms3d/engine/passes/test_compiling.py": 20,
    "lms3d/tasks/test_chexnet.py": 20,
    "lms3d/keras_step/test_estimate.py": 15,
    "lms3d/engine/planners/test_effort.py": 15,
    "lms3d/engine/planners/test_ladder.py": 15,
    "models/test_fused.py": 15,
}
"""Files that are long as a whole, in seconds on top of their tests in SLOW: they begin early, though no test in them is slow."""


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
    """Marks what is slow. If several workers share the files, the slowest come first: the last to begin would else be waited
    for by all others."""
    for item in items:
        if item.nodeid.removeprefix("tests/").startswith(tuple(SLOW)):
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: -file_seconds(item.nodeid))


def file_seconds(test: str) -> int:
    """What this test's file takes, or its slow tests together; of a file that is not named, what its folder says."""
    file = test.removeprefix("tests/").split("::")[0]
    known = [seconds for name, seconds in SLOW.items() if name.split("::")[0] == file]
    return LONG.get(file, 0) + sum(known) or sum(seconds for name, seconds in SLOW.items() if file.startswith(name))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Lists the files that took longest, as many as `--durations` lists tests: SLOW and LONG follow them."""
    number, seconds = terminalreporter.config.option.durations, Counter[str]()
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.split("::")[0]] += report.duration
    if number:
        terminalreporter.section(f"slowest {number} files, of {sum(seconds.values()):.0f}s together")
        for file, taken in seconds.most_common(number):
            terminalreporter.write_line(f"{taken:.2f}s {file}")


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
