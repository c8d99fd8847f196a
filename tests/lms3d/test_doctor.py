import os
import subprocess
import sys

import pytest

from lms3d import doctor
from lms3d.device import checks, examination, machine


def test_report(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(examination, "PROBE_BYTES", 16 * 2**20)
    assert doctor.main(["--swap-dir", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    for part in ("Devices", "training runs on", "Memory", "machine", "Swap disk", "write", "tensorflow", "horovod"):
        assert part in out
    for row in ("pinned for swaps", "locked memory", "cores of this process", "NUMA", "/dev/shm", "free", "read"):
        line = next(line for line in out.splitlines() if line.strip().startswith(row))
        assert "  ok  " in line or "  look here  " in line
    assert err == ""


def test_what_is_amiss_is_listed_at_the_end(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(examination, "PROBE_BYTES", 16 * 2**20)
    monkeypatch.setattr(examination, "horovod_features", lambda: "does not load (ImportError)")
    monkeypatch.setattr(machine, "locked_limit_bytes", lambda: 65536)
    monkeypatch.setattr(machine, "infiniband", lambda: ["mlx5_0"])
    doctor.main(["--swap-dir", str(tmp_path)])
    out = capsys.readouterr().out
    last = out.splitlines()[-1]
    assert last.startswith("Look at: ")
    assert "Horovod" in last
    assert "locked memory" in last
    assert "make horovod" in out


def test_kernels_without_onednn_are_something_to_look_at(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "lms3d.doctor", "--swap-dir", tmp_path],
        capture_output=True, text=True, timeout=240, env=os.environ | {"TF_ENABLE_ONEDNN_OPTS": "0"},
    )  # fmt: skip
    assert (
        "TensorFlow's own kernels: 3D convolutions take many times as long; unset TF_ENABLE_ONEDNN_OPTS" in done.stdout
    )
    assert done.returncode == 0, done.stderr


def test_unwritable_folder(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert doctor.main(["--swap-dir", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_installed_horovod_tells_its_features():
    pytest.importorskip("horovod", reason="make horovod installs it")
    features = examination.horovod_features()
    assert features["gloo"] is True
    assert set(features) == {"gloo", "mpi", "nccl"}


def test_the_mpi_of_the_installed_horovod():
    pytest.importorskip("horovod", reason="make horovod installs it")
    assert ("MPI" in examination.mpi_library()) == examination.horovod_features()["mpi"]


def test_a_horovod_that_does_not_load_is_reported_in_one_line(monkeypatch):
    monkeypatch.setattr(examination, "horovod_version", lambda: "0.28.1")
    monkeypatch.setitem(__import__("sys").modules, "horovod.tensorflow", None)
    found = examination.horovod_features()
    assert found.startswith("does not load (")
    assert "\n" not in found
    assert "make horovod" in checks.features(found, 0, None)["Horovod"].advice
