"""Several processes do all of the work, and an error arrives unchanged."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lms3d.data.errors import DataError, unwrap
from lms3d.data.workers import run_all, worker_count


def touch(folder: Path, number: int) -> None:
    (folder / f"{number} {os.getpid()}").touch()


def fail_on_two(number: int) -> None:
    if number == 2:
        raise DataError("two.nii.gz: found 2; expected any other\nnumber; leave it out")


def end_at_once() -> None:
    os._exit(1)


@pytest.mark.parametrize("workers", [1, 2])
def test_every_item_once(tmp_path, workers, record):
    calls, progress = record
    run_all(touch, [(tmp_path, n) for n in range(5)], workers=workers, progress=progress, what="touching")
    names = [path.name.split() for path in tmp_path.iterdir()]
    assert sorted(int(number) for number, _ in names) == list(range(5))
    assert (str(os.getpid()) in {process for _, process in names}) == (workers == 1)
    assert calls == [(done, 5, "touching") for done in range(6)]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_a_worker_keeps_its_type_and_line(workers):
    with pytest.raises(DataError) as caught:
        run_all(fail_on_two, [(n,) for n in range(4)], workers=workers)
    assert str(caught.value) == "two.nii.gz: found 2; expected any other number; leave it out"
    assert caught.value.exit_code == 2


def test_a_worker_that_dies():
    with pytest.raises(DataError, match="cubes: found a worker process that ended by itself"):
        run_all(end_at_once, [(), ()], workers=2, what="cubes")


def test_count():
    assert worker_count(3, None) <= 3
    assert worker_count(100, 4) == 4
    assert worker_count(0, None) == 1
    with pytest.raises(DataError, match="found 0; expected at least 1"):
        worker_count(3, 0)


def test_nothing_to_do():
    run_all(touch, [])


def test_unwrap_finds_the_line_inside_another_error():
    assert str(unwrap(RuntimeError("UnknownError: DataError: x.npy: found y\n\nTraceback"))) == "x.npy: found y"
    assert unwrap(RuntimeError("other")) is None


def test_a_script_that_its_workers_run_again_is_refused(tmp_path):
    """Its workers would wait for a lock that the script holds, and the script for its workers."""
    script = tmp_path / "script.py"
    script.write_text(
        f"from lms3d.data.phantoms import brains\nbrains.write({str(tmp_path / 'set')!r}, cases=2, workers=2)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "found the calling script run again by a worker process" in done.stderr
    assert "lacks `if __name__ == '__main__':`" in done.stderr.splitlines()[-1]
