"""Two real ranks under each launcher: they meet, agree before TensorFlow has devices, and take a device each."""

from pathlib import Path

import pytest

from tests.lms3d.ranks import launchers

NAMES = {"horovodrun": "horovodrun", "mpirun": "Open MPI's mpirun", "srun": "srun"}


JOBS = [*((launcher, "auto") for launcher in NAMES), pytest.param(("mpirun", "tensorflow"), marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=JOBS)
def found(request, started_by):
    launcher, backend = request.param
    launchers.need(launcher)
    job = started_by(launchers.COMMANDS[launcher], "job_place.py", backend, timeout=240, **launchers.ENVIRONMENT)
    assert job.code == 0, job.output
    return launcher, [job.results(rank) for rank in range(2)]


def test_the_ranks_meet(found):
    launcher, ranks = found
    assert [rank["world"] for rank in ranks] == [[0, 2, 0, 2], [1, 2, 1, 2]]
    assert [(rank["launcher"], rank["processes"]) for rank in ranks] == [(NAMES[launcher], 2)] * 2
    assert [(rank["everyone"], rank["mean"]) for rank in ranks] == [([0, 1], {"rank": 0.5})] * 2


def test_they_agree_before_tensorflow_has_devices(found):
    _, ranks = found
    assert [rank["early"] for rank in ranks] == [[0, 200_000]] * 2
    assert [rank["error"] for rank in ranks] == [["too large", 123]] * 2
    assert [rank["fewest"] for rank in ranks] == [9, 9]
    assert [rank["limit"] for rank in ranks] == [400 << 20] * 2, (
        "something had made TensorFlow's devices before the limit"
    )


def test_each_takes_the_device_of_its_place_on_the_machine(found):
    _, ranks = found
    assert [rank["gpu"] for rank in ranks] == [["GPU:0"], ["GPU:1"]]


def test_the_launcher_binds_as_it_was_told(found):
    """By core under srun; Open MPI's `--bind-to socket` leaves all cores of a socket to each."""
    launcher, (first, second) = found
    if launcher == "srun":
        assert first["cores"]
        assert not set(first["cores"]) & set(second["cores"])
    if launcher == "mpirun":
        assert min(len(first["cores"]), len(second["cores"])) >= launchers.cores_of_a_socket()


def test_an_error_of_one_rank_ends_the_job_at_once_and_is_told(started_by):
    """The error of rank 1, while rank 0 prepares something long. MPI's finalisation would wait for rank 0."""
    launchers.need("mpirun")
    job = started_by(launchers.COMMANDS["mpirun"], "job_fails.py", "1", timeout=90, **launchers.ENVIRONMENT)
    said = [line for line in job.output.splitlines() if "lms3d:" in line]
    assert said == ["lms3d: error: rank 1 cannot write here"], job.output
    assert job.code == 2, f"it was not rank 1 that ended the job:\n{job.output}"


@pytest.mark.parametrize(("variable", "outcome"), [("", pytest.skip.Exception), ("1", pytest.fail.Exception)])
def test_a_missing_launcher_fails_where_it_has_been_installed(monkeypatch, variable, outcome):
    monkeypatch.setattr(launchers, "HOROVODRUN", Path(__file__))
    monkeypatch.setattr(launchers.shutil, "which", lambda program, path: None)
    monkeypatch.setenv("LMS3D_CI", variable)
    with pytest.raises(outcome, match="mpirun not found: apt-get install openmpi-bin"):
        launchers.need("mpirun")
