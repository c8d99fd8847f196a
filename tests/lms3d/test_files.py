import errno

import pytest

from lms3d import files
from lms3d.errors import InputError, StorageError


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a" / "x.json"
    files.write_json(path, {"a": 1})

    def fill_the_disk():
        with files.replacing(path) as partial:
            partial.write_text("half")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StorageError, match=r"x\.json: No space left"):
        fill_the_disk()
    assert path.read_text() == '{\n  "a": 1\n}\n'
    assert [p.name for p in path.parent.iterdir()] == ["x.json"]


def test_not_a_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"--output .*file"):
        files.writable_folder(tmp_path / "file", "--output")


def test_folder_is_made(tmp_path):
    assert files.writable_folder(tmp_path / "a/b", "--output").is_dir()
    assert not list((tmp_path / "a/b").iterdir())
