"""The doctor's judgement: facts about a machine become findings. Nothing is read from the machine here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lms3d.device.machine import Binding, Launchers, core_list
from lms3d.units import format_size

NOT_INSTALLED = "not installed"
_GIB = 2**30
_MEMORY_KINDS = ("tmpfs", "ramfs")
_NETWORK_KINDS = ("nfs", "lustre", "gpfs", "beegfs", "cifs", "ceph", "fuse.sshfs", "glusterfs", "9p")
_ENOUGH_SHARED_BYTES = _GIB
_ENOUGH_SWAP_BYTES = 8 * _GIB
_SLOW_BYTES_PER_SECOND = 150e6


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report. fact: what is so. advice: what to do if something is slow or will fail; "" if all is
    well."""

    fact: str
    advice: str = ""

    @property
    def ok(self) -> bool:
        return not self.advice

    def __str__(self) -> str:
        return f"ok         {self.fact}" if self.ok else f"look here  {self.fact}: {self.advice}"


def features(built: Mapping[str, bool] | str, gpus: int, launchers: Launchers, library: str = "") -> dict[str, Finding]:
    """Findings about TensorFlow's collectives, about Horovod's features, and about the launchers of MPI ranks.

    built: feature -> whether the installed Horovod has it; or a text that says why this is unknown. library: the MPI that Horovod
    is linked with.
    """
    findings = {"TensorFlow's collectives": Finding("python -m lms3d.launch -np N python -m lms3d.train ...")}
    if isinstance(built, str):
        return findings | {"Horovod": _no_horovod(built)}
    findings["Gloo"] = Finding("built; horovodrun --gloo -np N python -m lms3d.train ...")
    if not built["gloo"]:
        findings["Gloo"] = Finding("not built", "ranks can only meet through MPI; make horovod builds it in")
    findings["MPI"] = _mpi(built["mpi"], launchers, library)
    if launchers.srun is not None:
        findings["srun"] = _srun(built["mpi"], launchers.srun)
    return {**findings, "NCCL": _nccl(built["nccl"], gpus)}


def _no_horovod(why: str) -> Finding:
    if why == NOT_INSTALLED:
        return Finding(
            "not installed; only ranks on several machines, and --elastic, need it (make horovod, or "
            "python -m lms3d.deploy.horovod.build)"
        )
    return Finding(
        why,
        "build it for this TensorFlow (make horovod, or python -m lms3d.deploy.horovod.build), or give --ranks tensorflow",
    )


def _mpi(built: bool, launchers: Launchers, library: str) -> Finding:
    mpirun = launchers.mpirun
    if built and not mpirun:
        return Finding("built, but mpirun is not on PATH", "load the MPI module that Horovod was built with")
    if built and mpirun:
        if library and _make(library) != _make(mpirun):
            return Finding(
                f"built for {library}, but there is {mpirun}: its ranks would not find each other",
                "put the mpirun of that MPI on PATH, or the mpicxx of this one and run make horovod",
            )
        if launchers.refusal:
            return Finding(f"built, but mpirun starts nothing here ({launchers.refusal})", "try mpirun -np 1 true")
        return Finding(f"built; {mpirun}; {mpirun_command(mpirun)}")
    if mpirun:
        return Finding(
            f"not built, but there is {mpirun}",
            "put its mpicxx on PATH and run make horovod; until then start ranks with horovodrun --gloo",
        )
    return Finding("not built, and no mpirun here; horovodrun starts ranks without it")


def _make(version: str) -> str:
    """The make and major version of an MPI. A library and its launcher must have the same."""
    if "Open MPI" not in version and "OpenRTE" not in version:
        return "another MPI"
    return f"Open MPI {next(iter(re.findall(r'[0-9]+', version)), '')}"


def _srun(built: bool, kinds: Sequence[str] | str) -> Finding:
    """A finding about srun. kinds: the values of srun --mpi, or a text that says why Slurm does not answer."""
    if not built:
        return Finding("here, but Horovod has no MPI", "ranks of srun meet through MPI alone; run make horovod with it")
    if isinstance(kinds, str):
        return Finding(f"here, but Slurm does not answer ({kinds})", "start ranks with mpirun or horovodrun")
    if "pmix" not in kinds:
        return Finding(
            f"--mpi can be {', '.join(kinds)}, not pmix",
            "name the one that MPI was built for, or start ranks with mpirun",
        )
    return Finding("srun --mpi=pmix -n N python -m lms3d.train ...")


def mpirun_command(version: str) -> str:
    """The command that starts one rank per socket with this make of MPI."""
    options = "--map-by socket --bind-to socket" if "Open MPI" in version or "OpenRTE" in version else "-bind-to socket"
    return f"mpirun {options} -np N python -m lms3d.train ..."


def _nccl(built: bool, gpus: int) -> Finding:
    if built:
        return Finding("built; gradients go from GPU to GPU")
    if gpus:
        return Finding(
            "not built",
            "gradients of a GPU take the way through host memory; set HOROVOD_NCCL_HOME and run "
            "python -m lms3d.deploy.horovod.build (deploy/conda/README.md says more)",
        )
    return Finding("not built; without a GPU nothing is lost")


def cores(binding: Binding, available: int) -> Finding:
    """A finding about the cores of this process, out of `available` in the machine."""
    where = f"{core_list(binding.cores)} of {available}"
    if binding.launcher:
        where += f", one of {binding.processes} processes of {binding.launcher}"
    if len(binding.cores) == 1 and available > binding.processes:
        return Finding(where, "bound to a single core, where all threads take turns; mpirun --bind-to socket, or none")
    return Finding(where)


def numa(binding: Binding) -> Finding:
    """A finding about NUMA: whether this process may read memory of another socket."""
    if len(binding.nodes) <= 1:
        return Finding("1 node; nothing to bind")
    layout = "; ".join(f"node {node}: cores {core_list(owned)}" for node, owned in binding.nodes.items())
    spanned = binding.spanned
    if len(spanned) <= 1:
        return Finding(f"{layout}; this process stays on node {', '.join(map(str, spanned)) or '?'}")
    return Finding(
        f"{layout}; this process spans {len(spanned)} of them",
        "threads then read memory of the other socket; start several ranks with mpirun --map-by socket --bind-to socket, "
        f"a single one with numactl --cpunodebind={spanned[0]} --membind={spanned[0]} python -m lms3d.train ...",
    )


def gpu(about: str, node: int | None, binding: Binding) -> Finding:
    """A finding about a GPU and the NUMA node of its bus."""
    if node is None or len(binding.nodes) <= 1 or node not in binding.nodes:
        return Finding(about)
    near = f"{about}, on NUMA node {node} (cores {core_list(binding.nodes[node])})"
    if binding.cores & binding.nodes[node]:
        return Finding(near)
    return Finding(
        near,
        f"this process runs on node {', '.join(map(str, binding.spanned)) or '?'} alone, so that swaps cross between "
        f"sockets; numactl --cpunodebind={node} --membind={node}, or mpirun --map-by socket with as many ranks as GPUs",
    )


def locked_memory(limit_bytes: int | None, adapters: Sequence[str]) -> Finding:
    """A finding about `ulimit -l`. CUDA's driver, and so swaps to host memory, may pin more than that; InfiniBand may not."""
    if limit_bytes is None:
        return Finding("unlimited (ulimit -l)")
    limit = f"{format_size(limit_bytes)} (ulimit -l)"
    if not adapters:
        return Finding(f"{limit}; CUDA does not count against it, InfiniBand would, and there is none here")
    return Finding(
        f"{limit} with InfiniBand ({', '.join(adapters)})",
        "NCCL and MPI cannot register their buffers (ibv_reg_mr fails); memlock unlimited in /etc/security/limits.conf, "
        "LimitMEMLOCK=infinity for slurmd, or docker run --ulimit memlock=-1",
    )


def pinned_pool(pool_bytes: int, host_bytes: int, gpus: int, processes: int) -> Finding:
    """A finding about host memory for the swaps of one GPU. pool_bytes: the most that TensorFlow pins
    (`memory.pinned_limit_bytes`)."""
    if not gpus:
        return Finding("no GPU: swaps go to disk, and nothing is pinned")
    share_bytes = host_bytes // max(gpus, processes)
    facts = f"at most {format_size(pool_bytes)} per process; {format_size(share_bytes)} of host memory per GPU"
    if pool_bytes < 0.9 * share_bytes:
        return Finding(
            facts, "a plan that swaps more than that fails; "
            f"TF_GPU_HOST_MEM_LIMIT_IN_MB={int(0.8 * share_bytes) >> 20} lets it use more",
        )  # fmt: skip
    return Finding(f"{facts}, which is what swaps can use")


def shared_memory(total_bytes: int | None) -> Finding:
    """A finding about /dev/shm, through which NCCL and MPI pass data between the processes of one machine. total_bytes: None if
    there is none."""
    advice = (
        "NCCL and MPI fail there with several ranks; docker run --shm-size=8g (or --ipc=host), "
        "in Kubernetes an emptyDir with medium: Memory mounted at /dev/shm"
    )
    if total_bytes is None:
        return Finding("there is none", advice)
    if total_bytes < _ENOUGH_SHARED_BYTES:
        return Finding(f"{format_size(total_bytes)}, as containers have unless told otherwise", advice)
    return Finding(format_size(total_bytes))


def swap_place(free_bytes: int, kind: str) -> Finding:
    """A finding about the folder for swap files: its file system and free space."""
    place = f"{format_size(free_bytes)} free{f', {kind}' if kind else ''}"
    if kind in _MEMORY_KINDS:
        return Finding(place, "this is memory, not a disk: swapping there frees nothing; --swap-dir on a disk")
    if kind.startswith(_NETWORK_KINDS):
        return Finding(
            place, "a network file system, slow and shared by all ranks; --swap-dir on a disk of this machine"
        )
    if free_bytes < _ENOUGH_SWAP_BYTES:
        return Finding(place, "a step at 192^3 may swap several GiB; free some space, or --swap-dir on another disk")
    return Finding(place)


def speed(bytes_per_second: float) -> Finding:
    """A finding about the speed of the swap disk in one direction."""
    fact = f"{format_size(bytes_per_second)}/s"
    if bytes_per_second < _SLOW_BYTES_PER_SECOND:
        return Finding(
            fact, "slower than an SSD: steps that swap past the free memory wait for it; --swap-dir on an SSD"
        )
    return Finding(fact)


def host_memory(total_bytes: int, available_bytes: int) -> Finding:
    """A finding about the machine's memory."""
    fact = f"{format_size(total_bytes)}, {format_size(available_bytes)} available"
    if available_bytes < 4 * _GIB:
        return Finding(fact, "little is left for training; end other programs, or train at a lower --resolution")
    return Finding(fact)
