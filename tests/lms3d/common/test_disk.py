"""Where caches lie. What temporary names promise is tested with the files that bear them (`test_files.py` of lms3d and of data)."""

from pathlib import Path

from lms3d.common import disk


def test_the_cache_directory_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path))
    assert disk.cache_directory() == tmp_path
    monkeypatch.delenv("LMS3D_CACHE")
    assert disk.cache_directory() == Path.home() / ".cache" / "lms3d"
