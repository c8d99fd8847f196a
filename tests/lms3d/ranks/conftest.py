"""Real ranks: a script of this folder, started by horovodrun. Starting TensorFlow costs seconds: a job checks many things."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fork_server import Commands
from tests.lms3d.ranks.started import HOROVODRUN, LAUNCHER

HERE = Path(__file__).parent


@dataclass
class Job:
    """The result of a job."""

    code: int
    output: str
    folder: Path

    def results(self, rank: int) -> dict[str, Any]:
        """The results that a rank has written with `ranks.note`."""
        path = self.folder / f"rank{rank}.json"
        assert path.exists(), f"rank {rank} wrote nothing; exit code {self.code}:\n{self.output}"
        return json.loads(path.read_text())


@pytest.fixture(scope="session")
def horovodrun(started_by: Callable[..., Job]) -> Callable[..., Job]:
    """`horovodrun("job.py", "argument", ranks=2)` runs tests/lms3d/ranks/job.py with a fresh folder as first argument."""
    if not LAUNCHER.exists():
        pytest.skip("Horovod is not installed: make horovod")
    return lambda script, *arguments, ranks=2, **options: started_by(
        [*HOROVODRUN, "-np", str(ranks), "--gloo"], script, *arguments, **options
    )


@pytest.fixture(scope="session")
def started_by(session_cache: Path, tmp_path_factory: pytest.TempPathFactory, commands: Commands) -> Callable[..., Job]:
    """As `horovodrun`, with the command of a launcher in front. forked: the launcher starts no Python, but forks of what is
    imported already; not for what a rank does while TensorFlow starts, or for the cores that it is bound to."""

    def run(
        launcher: list[Any],
        script: str,
        *arguments: str,
        timeout: float = 300,
        forked: bool = False,
        **environment: str,
    ) -> Job:
        folder = tmp_path_factory.mktemp(script.removesuffix(".py"))
        environ = {
            **os.environ,
            "PYTHONPATH": str(HERE.parents[2]),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "LMS3D_CACHE": str(session_cache),
            **environment,
        }
        python = commands.python() if forked else [sys.executable]
        command = [*launcher, *python, HERE / script, folder, *arguments]
        with subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as launcher:
            try:
                output, _ = launcher.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                _kill(launcher.pid)
                output, _ = launcher.communicate()
                pytest.fail(f"{script} hangs after {timeout:.0f} s:\n{output}")
        return Job(launcher.returncode, output, folder)

    return run


def _kill(pid: int) -> None:
    """A launcher and all that it has started; each rank leads a session of its own."""
    launcher = psutil.Process(pid)
    children = launcher.children(recursive=True)
    launcher.terminate()  # try_here.sh takes its Slurm down, whose daemons are nobody's children
    _, left = psutil.wait_procs([launcher], timeout=60)
    for process in [*children, *left]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
