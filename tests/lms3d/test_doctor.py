import pytest

from lms3d import doctor
from lms3d.errors import StorageError


def test_disk_speed_is_measured_and_leaves_nothing(tmp_path):
    write, read = doctor.disk_speed(tmp_path, 32 * 2**20)
    assert 1e6 < write < 1e11
    assert 1e6 < read < 1e11
    assert not list(tmp_path.iterdir())


def test_no_disk(tmp_path):
    with pytest.raises(StorageError, match="--swap-dir"):
        doctor.disk_speed(tmp_path / "absent", 16 * 2**20)


def test_report(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(doctor, "PROBE_BYTES", 16 * 2**20)
    assert doctor.main(["--swap-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for part in ("Devices", "training runs on", "Memory", "machine", "Swap disk", "write", "tensorflow", "horovod"):
        assert part in out


def test_unwritable_folder(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert doctor.main(["--swap-dir", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
