from types import SimpleNamespace

import pytest

from lms3d.errors import DoesNotFit, StorageError
from lms3d.training import out_of_memory

REPORT = SimpleNamespace(unedited_limit_bytes=1900 * 2**20, smallest_limit_bytes=500 * 2**20)
OOM = "OOM when allocating tensor with shape[1,96,96,96,32] and type float"


def explained(error, *, lms=False, limit=1200 * 2**20, estimate=lambda: REPORT):
    with out_of_memory.explained("net at 96^3", limit, lms, estimate):
        raise error


@pytest.mark.parametrize("wrap", [False, True])
def test_names_both_limits(wrap):
    error = RuntimeError(OOM)
    if wrap:
        inner, error = error, ValueError("Exception encountered when calling layer")
        error.__cause__ = inner
    with pytest.raises(DoesNotFit) as caught:
        explained(error)
    text = str(caught.value)
    parts = ["net at 96^3", "1.17 GiB without LMS", "[1,96,96,96,32]", "1.86 GiB", "500 MiB with LMS", "use --lms"]
    assert [part for part in parts if part not in text] == []
    assert caught.value.smallest_limit_bytes == 1900 * 2**20


def test_with_lms():
    with pytest.raises(DoesNotFit, match="raise --memory-limit") as caught:
        explained(MemoryError(), lms=True, limit=400 * 2**20)
    assert caught.value.smallest_limit_bytes == 500 * 2**20


def test_without_an_estimate():
    def estimate():
        raise IndexError

    with pytest.raises(DoesNotFit, match="raise --memory-limit") as caught:
        explained(RuntimeError(OOM), estimate=estimate)
    assert caught.value.smallest_limit_bytes is None


def test_a_full_disk_is_not_memory():
    with pytest.raises(StorageError, match="a disk is full"):
        explained(RuntimeError("ResourceExhaustedError: /swap/x; No space left on device"))


def test_other_errors_pass():
    with pytest.raises(ZeroDivisionError):
        explained(ZeroDivisionError())
