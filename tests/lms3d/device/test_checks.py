"""The doctor's findings about other machines."""

import pytest

from lms3d.device import checks
from lms3d.device.machine import Binding, Launchers

GIB = 2**30
TWO_NODES = {0: frozenset(range(8)), 1: frozenset(range(8, 16))}
OPEN_MPI = "mpirun (Open MPI) 4.1.4"


def bound(cores, **more):
    return Binding(cores=frozenset(cores), nodes=TWO_NODES, **more)


def test_a_finding_says_its_verdict_first():
    assert str(checks.Finding("8 GiB")).startswith("ok ")
    assert str(checks.Finding("64 MiB", "make it larger")).startswith("look here ")
    assert "make it larger" in str(checks.Finding("64 MiB", "make it larger"))


@pytest.mark.parametrize(
    ("cores", "processes", "ok"), [(range(16), 1, True), ([3], 1, False), ([3], 16, True), (range(8, 16), 2, True)]
)
def test_a_single_core_for_all_threads_is_a_mistake(cores, processes, ok):
    assert checks.cores(bound(cores, processes=processes), 16).ok == ok


def test_a_process_that_spans_sockets_is_told_how_to_bind():
    finding = checks.numa(bound(range(16)))
    assert not finding.ok
    assert "--map-by socket" in finding.advice
    assert "numactl --cpunodebind=0" in finding.advice
    assert checks.numa(bound(range(8, 12))).ok
    assert checks.numa(Binding(cores=frozenset(range(4)), nodes={0: frozenset(range(4))})).ok


def test_a_gpu_on_the_other_socket():
    assert checks.gpu("V100", 1, bound(range(8, 16))).ok
    assert checks.gpu("V100", None, bound(range(8))).ok
    far = checks.gpu("V100", 1, bound(range(8)))
    assert "cores 8-15" in far.fact
    assert "numactl --cpunodebind=1" in far.advice


@pytest.mark.parametrize(
    ("built", "gpus", "mpirun", "amiss"),
    [
        ({"gloo": True, "mpi": False, "nccl": False}, 0, None, set()),
        ({"gloo": True, "mpi": True, "nccl": True}, 4, OPEN_MPI, set()),
        ({"gloo": True, "mpi": False, "nccl": False}, 2, None, {"NCCL"}),
        ({"gloo": True, "mpi": False, "nccl": False}, 0, OPEN_MPI, {"MPI"}),
        ({"gloo": False, "mpi": True, "nccl": False}, 0, None, {"Gloo", "MPI"}),
        ("not installed", 0, None, set()),
        ("does not load (undefined symbol)", 0, None, {"Horovod"}),
    ],
)
def test_features_that_are_missed(built, gpus, mpirun, amiss):
    findings = checks.features(built, gpus, Launchers(mpirun=mpirun))
    assert {name for name, finding in findings.items() if not finding.ok} == amiss


GLOO, BOTH = ({"gloo": True, "mpi": mpi, "nccl": False} for mpi in (False, True))


@pytest.mark.parametrize(
    ("built", "launchers", "library", "amiss"),
    [
        (BOTH, Launchers(mpirun=OPEN_MPI, srun=("pmix", "pmi2")), "Open MPI v4.1.4", {}),
        (BOTH, Launchers(mpirun=OPEN_MPI, refusal="an attempt to run as root"), "Open MPI v4.1.4", {"MPI": "as root"}),
        (BOTH, Launchers(mpirun="mpirun (Open MPI) 5.0.6"), "Open MPI v4.1.4", {"MPI": "5.0.6: its ranks would not"}),
        (BOTH, Launchers(mpirun="HYDRA build details:"), "Open MPI v4.1.4", {"MPI": "HYDRA"}),
        (BOTH, Launchers(mpirun="HYDRA build details:"), "MPICH Version: 4.2", {}),
        (BOTH, Launchers(mpirun=OPEN_MPI, srun=("none", "pmi2")), "Open MPI v4.1.4", {"srun": "none, pmi2, not pmix"}),
        (BOTH, Launchers(mpirun=OPEN_MPI, srun="no controller"), "", {"srun": "does not answer (no controller)"}),
        (GLOO, Launchers(mpirun=OPEN_MPI, srun=("pmix",)), "", {"MPI": "not built", "srun": "Horovod has no MPI"}),
    ],
)
def test_the_doctor_says_whether_ranks_can_start_through_mpi(built, launchers, library, amiss):
    findings = checks.features(built, 0, launchers, library)
    found = {name: finding.fact for name, finding in findings.items() if not finding.ok}
    assert found.keys() == amiss.keys()
    assert all(words in found[name] for name, words in amiss.items())


def test_the_make_of_mpi_decides_its_options():
    assert "--map-by socket --bind-to socket" in checks.mpirun_command(OPEN_MPI)
    assert " -bind-to socket" in checks.mpirun_command("HYDRA build details:")


def test_locked_memory_matters_to_infiniband():
    assert checks.locked_memory(None, ["mlx5_0"]).ok
    assert checks.locked_memory(65536, []).ok
    assert "memlock" in checks.locked_memory(65536, ["mlx5_0"]).advice


def test_the_pinned_pool_must_be_as_large_as_what_swaps_could_use():
    assert checks.pinned_pool(64 * GIB, 500 * GIB, 0, 1).ok
    assert checks.pinned_pool(64 * GIB, 200 * GIB, 4, 1).ok
    assert "TF_GPU_HOST_MEM_LIMIT_IN_MB=102400" in checks.pinned_pool(64 * GIB, 500 * GIB, 4, 1).advice
    assert checks.pinned_pool(100 * GIB, 440 * GIB, 1, 4).ok
    assert not checks.pinned_pool(4 * GIB, 64 * GIB, 1, 1).ok


@pytest.mark.parametrize(("total", "ok"), [(None, False), (64 * 2**20, False), (8 * GIB, True)])
def test_shared_memory_of_containers(total, ok):
    finding = checks.shared_memory(total)
    assert finding.ok == ok
    assert ok or "--shm-size" in finding.advice


@pytest.mark.parametrize(
    ("free", "kind", "ok"),
    [(100 * GIB, "ext4", True), (100 * GIB, "tmpfs", False), (100 * GIB, "nfs4", False), (GIB, "xfs", False)],
)
def test_places_for_swap_files(free, kind, ok):
    assert checks.swap_place(free, kind).ok == ok


def test_slow_disks_and_little_memory():
    assert checks.speed(400e6).ok
    assert not checks.speed(90e6).ok
    assert checks.host_memory(24 * GIB, 20 * GIB).ok
    assert not checks.host_memory(24 * GIB, GIB).ok
