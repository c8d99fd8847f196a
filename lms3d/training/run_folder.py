"""Run folders: which folder a command means, with which options its run was begun, and its config.json."""

from __future__ import annotations

import contextlib
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, count
from pathlib import Path
from typing import Any, Protocol

from lms3d import console
from lms3d.atomic_files import make_folder, remove_partials, writable_folder, write_json
from lms3d.config import TrainConfig
from lms3d.device import circumstances, machine, memory, workspace
from lms3d.errors import InputError
from lms3d.training import checkpoint, config_file, option_file
from lms3d.training.run_lock import RunLock

DEFAULT_PARENT = Path("runs")
HANDOVER_SECONDS = 180.0
"""An NFS server keeps the locks of a dead machine for 90 s by default."""
_LIBRARIES = ("tensorflow", "keras", "numpy", "nibabel", "SimpleITK", "nilearn", "scipy", "horovod")
_DECISIVE = ("lms3d", "tensorflow", "keras", "numpy")


class Tasks(Protocol):
    """What a run folder asks about tasks. It is the package `lms3d.tasks`, which training does not import."""

    def kind_of(self, given: dict[str, Any], /) -> type[TrainConfig]:
        """The class of the options that the user gave."""

    def chosen(self, given: dict[str, Any], /) -> TrainConfig:
        """The options that the user gave, and defaults for all others."""

    def load(self, run_dir: Path, /) -> tuple[TrainConfig, dict[str, Any]]:
        """The options of a run, and the content of its config.json."""


def choose_run(
    given: dict[str, Any], output: Path | None, resume: bool, lock: RunLock, tasks: Tasks
) -> tuple[TrainConfig, Path, bool]:
    """The options of the run, its folder, whose `lock` is taken, and whether there is a checkpoint to go on from.

    given: the options that the user wrote. A new run has defaults for all others, a resumed one takes them from its config.json.
    Without `output` a new run gets a new folder under runs/, and a resumed one is the latest there (of the network and
    resolution, if given).
    """
    if resume:
        run_dir = output or _latest(given, tasks)
        if run_dir is not None:
            claim(run_dir, lock)
            if (run_dir / "config.json").exists():
                stored, content = tasks.load(run_dir)
                _tell_of_other_versions(run_dir, content)
                has_checkpoint = bool(checkpoint.generations(run_dir))
                _require_whole(run_dir, has_checkpoint)
                options = config_file.resumed(stored, given, run_dir)
                if has_checkpoint:
                    config_file.require_same_start(stored, given, run_dir)
                return options, run_dir, has_checkpoint
            if _has_weights(run_dir):  # stages without a config.json say so themselves
                raise InputError(
                    f"--resume: {run_dir} holds weights but no config.json; restore that, or choose another --output"
                )
        console.say(f"--resume: there is no run in {run_dir or DEFAULT_PARENT} to go on with; starting a new one")
    new = tasks.chosen(given)
    if output is None:
        return new, _unused(new, lock), False
    if not resume and holds_results(output):
        raise _other_run(output)
    claim(output, lock)
    if not resume and holds_results(output):  # it ended just now
        raise _other_run(output)
    return new, output, False


def planned(given: dict[str, Any], output: Path | None, resume: bool, tasks: Tasks) -> TrainConfig:
    """The options that `choose_run` would give, for a dry run: nothing is locked or written."""
    run_dir = (output or _latest(given, tasks)) if resume else None
    if run_dir is None or not (run_dir / "config.json").exists():
        return tasks.chosen(given)
    return config_file.resumed(tasks.load(run_dir)[0], given, run_dir)


def _require_whole(run_dir: Path, has_checkpoint: bool) -> None:
    """InputError if a run has lost its checkpoints: beginning again would overwrite what is left of it."""
    history = run_dir / "history.csv"
    if has_checkpoint or not history.exists():
        return
    epochs = len(history.read_text(encoding="utf-8", errors="replace").splitlines()) - 1
    if epochs > 1:  # a run killed while it saves its first checkpoint has one row and no checkpoint
        raise InputError(
            f"--resume: {checkpoint.path_in(run_dir)} is missing after {epochs} epochs; restore it, or start another run with "
            "another --output"
        )


def claim(run_dir: Path, lock: RunLock) -> None:
    """Takes the lock of a run folder. InputError if another training has it."""
    if not _taken(run_dir, lock):
        raise InputError(
            f"--output {run_dir} is in use by {lock.holder(run_dir)}; wait until that training has ended, or stop it, or "
            "choose another --output"
        )


def take_over(run_dir: Path, lock: RunLock) -> None:
    """Takes the lock from the rank that held it before; goes on without it after `HANDOVER_SECONDS`."""
    if not _taken(run_dir, lock, HANDOVER_SECONDS):
        console.say(
            f"{run_dir} is still locked by {lock.holder(run_dir)}, after {HANDOVER_SECONDS:.0f} s; training goes on without "
            "the lock: see to it that nothing else writes there"
        )


def _taken(run_dir: Path, lock: RunLock, seconds: float = 0.0) -> bool:
    """Takes the lock and removes the half-written files of killed runs. False if another process has it."""
    if not lock.take(writable_folder(run_dir, "--output"), seconds):
        return False
    if lock.locked:
        for folder in (run_dir, checkpoint.path_in(run_dir).parent, run_dir / "figures"):
            remove_partials(folder)
    return True


def holds_results(run_dir: Path) -> bool:
    """Whether another run would overwrite results; a run that never finished an epoch has none."""
    return _has_weights(run_dir) or any(run_dir.glob("stages/*/best.keras"))


def _has_weights(run_dir: Path) -> bool:
    return bool(checkpoint.generations(run_dir)) or (run_dir / "best.keras").exists()


def describe(
    run_dir: Path, options: TrainConfig, arguments: Sequence[str], *, resuming: bool, device: str, limit_bytes: int,
    **more: Any,
) -> None:  # fmt: skip
    """Writes run.toml, and config.json: every option, versions, machine, circumstances, and what the caller adds (data,
    normalisation).

    A resumed run lists its earlier calls under "earlier_sessions", if they differed.
    """
    gpu = memory.gpu_name()
    session = {
        "options": options.to_json(),
        "command": ["python", "-m", "lms3d.train", *arguments],
        "versions": versions(),
        "device": device,
        "machine": machine.description(gpu),
        "circumstances": asdict(circumstances.here()),
        "memory_limit_bytes": limit_bytes,
        **({"cudnn_workspace_bytes": workspace.in_force()} if gpu else {}),
    }
    earlier = _sessions_before(run_dir, session) if resuming else []
    content = {**session, **more, **({"earlier_sessions": earlier} if earlier else {})}
    write_json(writable_folder(run_dir, "--output") / "config.json", content)
    option_file.write(run_dir, options)


def announce(run_dir: Path, options: TrainConfig, arguments: Sequence[str]) -> None:
    """Writes config.json and run.toml before the run itself begins: a run that is stopped in a stage continues with these
    options."""
    if not (run_dir / "config.json").exists():
        content = {
            "options": options.to_json(),
            "command": ["python", "-m", "lms3d.train", *arguments],
            "versions": versions(),
        }
        write_json(writable_folder(run_dir, "--output") / "config.json", content)
        option_file.write(run_dir, options)


def _sessions_before(run_dir: Path, session: dict[str, Any]) -> list[dict[str, Any]]:
    content = config_file.read(run_dir)
    last = {name: content[name] for name in session if name in content}
    return [*content.get("earlier_sessions", []), *([last] if _of_any_boot(last) != _of_any_boot(session) else [])]


def _of_any_boot(session: dict[str, Any]) -> dict[str, Any]:
    """The session without what changes whenever a machine is started."""
    circumstances = {name: value for name, value in session.get("circumstances", {}).items() if name != "boot"}
    return {**session, "circumstances": circumstances}


def _tell_of_other_versions(run_dir: Path, content: dict[str, Any]) -> None:
    """Warns if a library that decides the bits of a training has another version now."""
    before, now = content.get("versions", {}), versions()
    changed = [name for name in _DECISIVE if name in before and before[name] != now.get(name)]
    if changed:
        was, is_now = (", ".join(f"{name} {found.get(name, 'none')}" for name in changed) for found in (before, now))
        console.say(f"--resume: {run_dir} was trained with {was}; now it goes on with {is_now}: its bits may differ")


def check_data(run_dir: Path, fingerprint: str) -> None:
    """InputError unless the run was trained on data with this fingerprint."""
    if config_file.fingerprint(config_file.read(run_dir), run_dir) != fingerprint:
        raise InputError(
            f"--resume: the data is not what {run_dir} was trained on; give the same --data, or start another run"
        )


def versions() -> dict[str, str]:
    """The versions of Python, the platform, lms3d, and the installed libraries that results depend on."""
    found = {"python": platform.python_version(), "platform": platform.platform(), "lms3d": _own_version()}
    for name in _LIBRARIES:
        for package in (name, f"{name}-nightly"):  # candidates of TensorFlow bring keras-nightly
            try:
                found[name] = version(package)
                break
            except PackageNotFoundError:
                continue
    return found


def resume_command(run_dir: Path) -> str:
    """The command that resumes a run."""
    return f"{Path(sys.executable).name} -m lms3d.train --output {run_dir} --resume"


def _own_version() -> str:
    import lms3d

    return lms3d.__version__


def _other_run(run_dir: Path) -> InputError:
    return InputError(f"--output {run_dir} holds another run; add --resume to continue it, or choose another --output")


def _unused(options: TrainConfig, lock: RunLock) -> Path:
    """The first empty folder under runs/ that is free. If two processes try the same one, one of them gets the lock."""
    first = DEFAULT_PARENT / options.folder_name()
    numbered = (first.with_name(f"{first.name}-{number}") for number in count(2))
    return next(path for path in chain([first], numbered) if _ours(path, lock))


def _ours(run_dir: Path, lock: RunLock) -> bool:
    """Whether the folder is empty and this process alone has it. Without locks it must have made the folder."""
    if holds_results(run_dir):
        return False
    made = False
    with contextlib.suppress(OSError):  # `writable_folder` will explain it
        made = make_folder(run_dir)
    # Its last owner may have finished an epoch before this process got the lock.
    return _taken(run_dir, lock) and (made or lock.locked) and not holds_results(run_dir)


def _latest(given: dict[str, Any], tasks: Tasks) -> Path | None:
    named = not given.keys().isdisjoint(tasks.kind_of(given).named_by)
    name = re.escape(tasks.chosen(given).folder_name()) if named else ".*"
    saved = {
        path: max(one.stat().st_mtime for one in generations)
        for path in DEFAULT_PARENT.glob("*")
        if re.fullmatch(rf"{name}(-\d+)?", path.name) and (generations := _generations(path))
    }
    return max(saved, key=saved.__getitem__, default=None)


def _generations(run_dir: Path) -> list[Path]:
    """The checkpoints of a run and of its stages."""
    stages = [one for stage in run_dir.glob("stages/*") for one in checkpoint.generations(stage)]
    return checkpoint.generations(run_dir) + stages
