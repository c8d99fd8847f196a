"""The real command under real launchers, two ranks, for both tasks: its files and messages, with and without LMS, after
Ctrl-C, and how it refuses. Starting two ranks costs much: each job answers several questions. Networks are small
(`tests.small`)."""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

from lms3d.data.phantoms import brains as phantom
from lms3d.data.phantoms import chests as radiograph
from tests.caches import private_cache
from tests.fork_server import ONE_WORKER
from tests.lms3d.ranks import launchers
from tests.lms3d.ranks.started import HOROVODRUN, LAUNCHER

ROOT = Path(__file__).parents[2]
TRAIN = ["tests.small", "lms3d.train"]
REAL = ["lms3d.train"]
"""A refusal comes before networks are made: the real ones cost nothing, and TensorFlow need not start for small ones."""
METRICS = {"brats": "dice_WT", "chexnet": "auroc"}
SWAPPING = ["--lms", "--swapout-threshold", 20, "--swapin-ahead", 2, "--swapin-groupby", 0, "--sync-mode", 0]

pytestmark = pytest.mark.skipif(not LAUNCHER.exists(), reason="Horovod is not installed: make horovod")


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    cache = str(private_cache(tmp_path_factory.mktemp("cache")))
    return {**os.environ, **ONE_WORKER, "LMS3D_CACHE": cache, "TF_CPP_MIN_LOG_LEVEL": "3"}


@pytest.fixture(scope="module")
def start(environment, commands):
    """Starts a job of two ranks whose output comes through one pipe; the rest of it is killed at the end. Its ranks are forks
    of a process that has imported TensorFlow already."""
    jobs: list[subprocess.Popen] = []

    def begin(*arguments, program=TRAIN) -> subprocess.Popen:
        job = subprocess.Popen(
            [*HOROVODRUN, "-np", "2", "--gloo", *commands.python(), "-m", *program, *map(str, arguments)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        jobs.append(job)
        return job

    yield begin
    for job in jobs:
        if job.poll() is None:
            for process in [*psutil.Process(job.pid).children(recursive=True), job]:
                process.kill()
        job.stdout.close()
        job.wait()


@pytest.fixture(scope="module")
def train(start):
    """Runs a job to its end: exit code and output."""

    def run(*arguments, **program) -> tuple[int, str]:
        job = start(*arguments, **program)
        output, _ = job.communicate(timeout=300)
        return job.returncode, output

    return run


@pytest.fixture(scope="module")
def options(tmp_path_factory) -> dict[str, list]:
    """Per task: a tiny data set, a small network and two short epochs; brats also averages, accumulates and follows a cosine."""
    brains = phantom.write(tmp_path_factory.mktemp("phantom"), cases=5, spacing_mm=8, workers=1)
    chests = radiograph.write(tmp_path_factory.mktemp("chests"), images=60, size=48, workers=1)
    length = ["--seed", 3, "--epochs", 2, "--steps-per-epoch", 3, "--warmup-epochs", 1]
    return {
        "brats": ["--data", brains, "--model", "unet3d", "--resolution", 32, *length,
                  "--ema", 0.9, "--accumulate", 2, "--schedule", "cosine"],
        "chexnet": ["--task", "chexnet", "--data", chests, "--model", "resnet50", "--resolution", 32, "--batch-size", 2,
                    *length],
    }  # fmt: skip


@pytest.fixture(scope="module", params=["brats", "chexnet"])
def straight(request, train, options, tmp_path_factory) -> tuple[str, Path, str]:
    """A run without LMS that nothing disturbed: its task, its folder and its output."""
    run_dir = tmp_path_factory.mktemp("straight") / "run"
    code, output = train(*options[request.param], "--no-lms", "--output", run_dir)
    assert code == 0, output
    return request.param, run_dir, output


def lines(output: str) -> list[str]:
    """What lms3d has told the user about an end that was not the usual one."""
    return [line for line in output.splitlines() if "lms3d:" in line]


def assert_same_weights(one: Path, other: Path) -> None:
    with np.load(one / "last/checkpoint.npz") as first, np.load(other / "last/checkpoint.npz") as second:
        names = [name for name in first.files if name != "state.json"]
        assert set(names) == set(second.files) - {"state.json"}
        for name in names:
            np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def history(run_dir: Path) -> list[dict[str, str]]:
    rows = list(csv.DictReader((run_dir / "history.csv").read_text().splitlines()))
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def test_rank_0_writes_and_talks(straight):
    task, run_dir, output = straight
    rows = history(run_dir)
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert {METRICS[task], f"val_{METRICS[task]}"} <= rows[0].keys()
    rate = json.loads((run_dir / "config.json").read_text())["options"]["learning_rate"]
    of_all = {"brats": 2 * rate / 100, "chexnet": 2 * rate}  # a cosine ends at a hundredth
    assert float(rows[-1]["learning_rate"]) == pytest.approx(of_all[task])
    assert output.count("Training ended after") == 1
    assert "[1]<stdout>" not in output
    assert "[1]<stderr>" not in output
    assert not list(run_dir.rglob("*.partial*"))
    assert len(list((run_dir / "tensorboard").iterdir())) == 1
    assert {"best.keras", "split.json", "lms_stats.csv", "figures"} <= {path.name for path in run_dir.iterdir()}


@pytest.mark.parametrize("straight", ["brats"], indirect=True)
def test_lms_interrupted_on_one_rank_and_resumed_gives_the_same_bits(
    straight, start, train, options, commands, tmp_path
):
    """Two jobs with swapping; the straight run had none, and was never interrupted. Networks that normalise
    batches are resumed in lms3d/ranks/test_ranks_training."""
    task, undisturbed, _ = straight
    run_dir = tmp_path / "run"
    job = start(*options[task], *SWAPPING, "--output", run_dir)
    statistics, deadline = run_dir / "lms_stats.csv", time.monotonic() + 240
    while time.monotonic() < deadline and not (statistics.exists() and statistics.read_text().count("\n") >= 2):
        assert job.poll() is None, job.communicate()[0]
        time.sleep(0.01)
    ranks = [
        process for process in psutil.Process(job.pid).children(recursive=True)
        if process.cmdline()[: len(commands.python())] == commands.python()
    ]  # fmt: skip
    assert len(ranks) == 2
    next(rank for rank in ranks if rank.environ()["HOROVOD_RANK"] == "1").send_signal(2)
    output, _ = job.communicate(timeout=120)
    assert job.returncode != 0
    (told,) = lines(output)
    assert "interrupted in epoch" in told
    assert "--resume" in told

    code, output = train("--output", run_dir, "--resume")
    assert code == 0, output
    assert output.count("Training ended after") == 1
    plan = json.loads((run_dir / "lms_plan.json").read_text())["train"]["report"]
    assert plan["swapped_out_bytes"] > 0
    assert_same_weights(run_dir, undisturbed)
    assert history(run_dir) == history(undisturbed)


@pytest.mark.parametrize("straight", ["brats"], indirect=True)
def test_slabs_on_two_ranks_learn_what_whole_steps_do(straight, train, options, tmp_path):
    _, undisturbed, _ = straight
    run_dir = tmp_path / "run"
    code, output = train(*options["brats"], "--slabs", 4, "--output", run_dir)
    assert code == 0, output
    with np.load(run_dir / "last/checkpoint.npz") as content:
        slabs = json.loads(content["state.json"].tobytes())["slabs"]
    assert slabs["train (1, 32, 32, 32, 4) (1, 32, 32, 32, 3)"] == "4/2"
    for mine, whole in zip(history(run_dir), history(undisturbed), strict=True):  # rounding grows from step to step
        assert float(mine["loss"]) == pytest.approx(float(whole["loss"]), abs=5e-4)


@pytest.mark.parametrize("straight", ["brats"], indirect=True)
def test_the_command_of_the_mpijob_under_mpirun_gives_the_same_bits(straight, options, environment, tmp_path):
    """What the launcher's container runs (deploy/kubernetes), with LMS, on this machine's folders and at a toy's size."""
    launchers.need("mpirun")
    _, undisturbed, _ = straight
    (job,) = yaml.safe_load_all((ROOT / "deploy/kubernetes/base/mpijob.yaml").read_text())
    (container,) = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    here = {"4": "2", "/data": "DATA", "/runs/isensee2017-128": str(tmp_path / "run"), "128": "32", "8GiB": "2GiB",
            "/swap": str(tmp_path / "swap")}  # fmt: skip
    assert here.keys() <= set(container["args"])
    words = [here.get(word, word) for word in [*container["command"], *container["args"]]]
    words[words.index("DATA")] = str(options["brats"][1])
    words.insert(words.index("lms3d.train"), "tests.small")
    environ = {
        **{entry["name"]: entry["value"] for entry in container["env"]}, **environment, **launchers.ENVIRONMENT,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "LMS3D_RANKS": str(tmp_path / "ranks"),
    }  # fmt: skip
    done = subprocess.run(
        [*words, *map(str, options["brats"][2:])], cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=450,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("Training ended after") == 1
    assert "\x1b" not in done.stdout  # mpirun gives its ranks a terminal, and a log is none
    assert_same_weights(tmp_path / "run", undisturbed)
    assert history(tmp_path / "run") == history(undisturbed)
    assert sorted(path.name for path in (tmp_path / "ranks").iterdir()) == ["0.pid", "1.pid"]


def test_another_run_is_not_overwritten_and_one_rank_says_so(train, tmp_path):
    (tmp_path / "run/last").mkdir(parents=True)
    (tmp_path / "run/last/checkpoint.npz").touch()
    code, output = train("--output", tmp_path / "run", program=REAL)
    assert code != 0
    (told,) = lines(output)
    assert "holds another run" in told
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["last"]


def test_a_wrong_option_is_told_once(train, tmp_path):
    code, output = train("--colour", "blue", "--output", tmp_path / "run", program=REAL)
    assert code != 0
    (told,) = lines(output)
    assert "--colour" in told
    assert not (tmp_path / "run").exists()
