"""The world of one rank, the arithmetic of many, and the way in which a process finds the others."""

import os
import subprocess
import sys

import pytest

from lms3d import errors
from lms3d.device import startup
from lms3d.errors import InputError
from lms3d.ranks import job, replicas
from lms3d.ranks.world import World

LAUNCHERS = (
    "LMS3D_SIZE",
    "LMS3D_STORE",
    "HOROVOD_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "SLURM_STEP_NUM_TASKS",
    "HOROVOD_ELASTIC",
)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")  # `job.join` sets it


def test_alone():
    world = World()
    assert world.is_chief
    assert world.share([1, 2, 3]) == [1, 2, 3]
    assert world.training_steps(5, 2) == 3
    assert world.validation_steps(5, 2) == 3
    assert world.learning_rate(5e-4) == 5e-4


def test_sixteen_ranks_of_the_case_study():
    ranks = [World(rank=rank, size=16) for rank in range(16)]
    shares = [world.share(range(228)) for world in ranks]
    assert sorted(item for share in shares for item in share) == list(range(228))
    assert {len(share) for share in shares} == {14, 15}
    # An epoch is as near to a pass over all subjects as whole steps allow: 14 * 16 = 224 of 228, and none is lost.
    assert {world.training_steps(228, 1) for world in ranks} == {14}
    assert {world.validation_steps(57, 1) for world in ranks} == {4}
    assert sum(world.is_chief for world in ranks) == 1


@pytest.mark.parametrize(
    ("items", "size", "batch", "steps"), [(10, 4, 1, 3), (9, 4, 1, 2), (1, 16, 4, 1), (8, 2, 2, 2), (3, 1, 2, 2)]
)
def test_steps_of_an_epoch_are_rounded_and_never_none(items, size, batch, steps):
    assert World(rank=size - 1, size=size).training_steps(items, batch) == steps


def test_no_such_rank():
    with pytest.raises(ValueError, match="rank 2"):
        World(rank=2, size=2)


def test_several_ranks_need_a_link():
    with pytest.raises(ValueError, match=r"rank 1 of 2 has no link .*job\.join"):
        World(rank=1, size=2).from_chief(lambda: None)


def test_alone_every_exchange_is_the_identity():
    world = World()
    assert world.from_chief(lambda: 7) == 7
    assert world.everyone("a") == ["a"]
    assert world.mean({"a": 1.5}, weight=0.0) == {"a": 1.5}
    assert world.largest([True, 2]) == [1.0, 2.0]
    with pytest.raises(KeyError):
        world.from_chief(lambda: {}["a"])
    replicas.synchronise(None, world)
    world.wait()
    world.devices_exist()
    job.leave(world)


def test_a_process_alone_imports_neither_horovod_nor_tensorflow():
    program = (
        "import sys; from lms3d.ranks import job, world\n"
        "with job.joined() as alone: assert alone == world.World()\n"
        "assert not {'horovod', 'tensorflow'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", LAUNCHERS[2:6])
def test_ranks_without_horovod_get_advice(monkeypatch, name):
    monkeypatch.setenv(name, "3")
    monkeypatch.setitem(sys.modules, "lms3d.ranks.horovod", None)  # an import of it fails
    monkeypatch.delattr("lms3d.ranks.horovod", raising=False)
    with pytest.raises(
        InputError, match=r"3 ranks were started, but Horovod cannot be used .*make horovod, give --ranks tensorflow"
    ):
        job.join("horovod")


def test_horovod_finds_keras_with_tensorflow(monkeypatch):
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.setitem(sys.modules, "lms3d.ranks.horovod", None)
    monkeypatch.delattr("lms3d.ranks.horovod", raising=False)
    with pytest.raises(InputError):
        job.join("horovod")
    assert os.environ["KERAS_BACKEND"] == "tensorflow"


@pytest.mark.parametrize(
    ("backend", "installed", "by_launch", "expected"),
    [
        ("auto", True, False, True), ("auto", False, False, False), ("auto", True, True, False),
        ("horovod", False, False, True), ("tensorflow", True, False, False), ("tensorflow", False, True, False),
    ],
)  # fmt: skip
def test_which_link_is_chosen(monkeypatch, backend, installed, by_launch, expected):
    monkeypatch.setattr(job, "find_spec", lambda name: name if installed else None)
    if by_launch:
        monkeypatch.setenv("LMS3D_STORE", "127.0.0.1:1/x")
    assert job._uses_horovod(backend) is expected


def test_horovod_knows_no_launcher_of_ours(monkeypatch):
    monkeypatch.setenv("LMS3D_STORE", "127.0.0.1:1/x")
    monkeypatch.setenv("LMS3D_SIZE", "2")
    with pytest.raises(InputError, match=r"--ranks horovod: .* does not know python -m lms3d\.launch"):
        job.join("horovod")


def test_our_launcher_within_a_task_of_another(monkeypatch):
    for name, size in (("SLURM_STEP_NUM_TASKS", "4"), ("LMS3D_SIZE", "1"), ("LMS3D_STORE", "127.0.0.1:1/x")):
        monkeypatch.setenv(name, size)
    assert job.join().size == 1


class Told:
    """A link of rank 0 to which the others have sent these numbers."""

    def __init__(self, *messages: bytes) -> None:
        self.messages = messages

    def gather_on_chief(self, message: bytes) -> list[bytes]:
        return [message, *self.messages]

    def broadcast(self, message: bytes) -> bytes:
        return message


def test_the_smallest_of_all_ranks():
    assert World(size=3, link=Told(b"  4", b"12")).smallest(5) == 4
    with pytest.raises(InputError, match="found 'None', expected a whole number"):
        World(size=2, link=Told(b"null")).smallest(5)
    assert World().smallest(5) == 5


def test_cores_that_lie_idle_are_told_of(capsys):
    startup._report_idle_cores([4, 4], 4)
    assert capsys.readouterr().out == ""
    startup._report_idle_cores([4, 8, 2], 2)
    assert "Rank 1 has 8 cores and uses 2 threads per operation" in capsys.readouterr().out


def test_a_batch_script_of_slurm_is_no_launcher(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "8")
    assert job.join() == World()


@pytest.mark.parametrize(
    ("processes", "allowed", "machine", "expected"),
    [(1, 8, 8, 8), (2, 8, 8, 4), (3, 8, 8, 2), (16, 8, 8, 1), (4, 2, 8, 2), (2, 6, 8, 3)],
    ids=["alone", "two", "three", "more ranks than cores", "bound by the launcher", "a container of both"],
)
def test_ranks_share_the_cores(processes, allowed, machine, expected):
    assert startup.cores_per_process(processes, allowed=allowed, all_cores=machine) == expected


def test_ranks_share_the_memory_of_the_host(monkeypatch):
    from lms3d.device import memory

    monkeypatch.setattr(memory, "current_limit", lambda: None)
    monkeypatch.setattr(memory, "compute_device", lambda: "CPU:0")
    monkeypatch.setattr(memory, "free_host_bytes", lambda: 1200)
    monkeypatch.setattr(memory, "_processes", 1)
    memory.share_host(3)
    assert memory.device_memory_bytes() == 400


class Devices:
    """`tensorflow`, as far as pinning uses it."""

    def __init__(self, gpus):
        self.config, self.gpus, self.visible = self, gpus, None

    def list_physical_devices(self, kind):
        return self.gpus

    def set_visible_devices(self, gpu, kind):
        self.visible = gpu


@pytest.mark.parametrize(("gpus", "visible"), [([], None), (["a"], None), (["a", "b", "c"], "b")])
def test_each_rank_has_a_gpu_of_its_own(gpus, visible):
    tensorflow = Devices(gpus)
    startup._pin_gpu(tensorflow, World(rank=5, size=8, local_rank=1, local_size=2))
    assert tensorflow.visible == visible


def test_more_ranks_than_gpus():
    with pytest.raises(InputError, match="4 ranks were started on this machine, which has 2 GPUs"):
        startup._pin_gpu(Devices(["a", "b"]), World(rank=3, size=4, local_rank=3, local_size=4))


def test_an_error_made_of_one_of_all_ranks_is_of_all_ranks():
    def wrapped() -> Exception:
        try:
            try:
                raise errors.of_all_ranks(InputError("inner"))
            except InputError:
                raise RuntimeError("outer") from None
        except RuntimeError as error:
            return error

    assert errors.is_of_all_ranks(wrapped())
    assert not errors.is_of_all_ranks(RuntimeError("alone"))


@pytest.mark.parametrize(("aloud", "expected"), [(True, "lms3d: error: no such folder\n"), (False, "")])
def test_what_is_reported_once_is_not_told_again(capsys, aloud, expected):
    def fail() -> None:
        error = InputError("no such folder")
        errors.report_once(error, aloud)
        raise error

    assert errors.run(fail) == 2
    assert capsys.readouterr().err == expected
