"""Values that travel between ranks come out as they went in, and nothing else comes out."""

from __future__ import annotations

import json
import math
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from lms3d.errors import DoesNotFit, InputError, Interrupted
from lms3d.ranks import messages
from lms3d.tasks.brats.options import BratsConfig


@messages.sendable
@dataclass(frozen=True)
class Sent:
    """Travels."""

    name: str
    where: Path | None = None


@dataclass(frozen=True)
class Kept:
    """Nobody said that it may travel."""

    name: str


class Awkward(ValueError):
    """Cannot be made from its arguments alone, and is not known."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")


def there_and_back(value):
    return messages.unpacked(messages.packed(value))


@pytest.mark.parametrize(
    "value",
    [
        None, True, -(2**70), 0.1, 1e-320, math.inf, "", "Grüße\n\udcff", [], [1, [2.5, None]], (), (1, ("a",)), {},
        {"dict": {"tuple": 1}}, {1: "one", (2, 3): [4], None: {}}, b"", b"\x00\xff", Path("runs/a b"),
        Sent("a", Path("/x")), [Sent("b")], BratsConfig(data=Path("d"), serialization=(1, "3:5")),
    ],
    ids=repr,
)  # fmt: skip
def test_a_value_comes_back(value):
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value)


def test_what_is_not_a_number_comes_back():
    assert math.isnan(there_and_back(math.nan))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32", "float64", "complex64"])
def test_an_array_comes_back(dtype):
    for array in (np.arange(6).reshape(3, 2).astype(dtype), np.zeros((0, 3), dtype), np.array(1, dtype)):
        back = there_and_back(array)
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(back, array)
        assert back.flags.writeable
        np.testing.assert_array_equal(there_and_back(array.T), array.T)
    number = np.dtype(dtype).type(1)
    assert there_and_back(number) == number
    assert type(there_and_back(number)) is type(number)


@pytest.mark.parametrize(
    "error", [InputError("no such folder"), DoesNotFit("too large", 123), Interrupted("stopped"), KeyError("x"),
              FileNotFoundError(2, "No such file", "a"), KeyboardInterrupt()], ids=repr,
)  # fmt: skip
def test_an_error_comes_back(error):
    error.exit_code = 7
    back = there_and_back(error)
    assert type(back) is type(error)
    assert (back.args, str(back), vars(back)) == (error.args, str(error), vars(error))


@pytest.mark.parametrize(
    "value", [Kept("a"), Awkward("a", "b"), (x for x in ()), {1, 2}, len, Sent, np.array([None]), np.array(["a"])],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_nobody_allowed_does_not_travel(value):
    for message in (value, [value], {"a": value}, Sent(value)):
        with pytest.raises(TypeError, match="cannot be sent"):
            messages.packed(message)


@pytest.mark.parametrize("function", ["eval", "exec"])
def test_no_function_of_python_itself_is_called(function, monkeypatch):
    monkeypatch.setattr(sys, "lms3d_was_here", False, raising=False)
    code = "setattr(__import__('sys'), 'lms3d_was_here', True)"
    with pytest.raises(InputError):
        messages.unpacked(json.dumps({"error": [f"builtins.{function}", [code], {"dict": []}]}).encode())
    assert not sys.lms3d_was_here


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"\xff\xfe", pickle.dumps(7), b"[" * 100_000, b"{}", b'{"a": 1, "b": 2}', b'{"code": "1"}',
        *(json.dumps(value).encode() for value in (
            {"value": ["lms3d.ranks.messages.unpacked", {}]}, {"value": ["builtins.eval", {}]}, {"value": ["os.system", {}]},
            {"value": [f"{__name__}.Kept", {"name": "a"}]}, {"value": [f"{__name__}.Sent", {"colour": "blue"}]},
            {"error": ["builtins.print", ["x"], {}]}, {"error": ["builtins.eval", ["1"], {}]},
            {"error": [f"{__name__}.Awkward", {"list": []}, {}]}, {"error": ["os.error", [], {}]},
            {"dict": [[["a"], 1]]}, {"dict": [[{"dict": []}, 1]]}, {"dict": 7}, {"tuple": "ab"}, {"path": 7},
            {"bytes": "*"}, {"array": ["object", [1], "AAAAAAAAAAA="]}, {"array": ["float32", [2], "AAAA"]},
            {"array": ["float32", [-1], "AAAA"]}, {"array": ["float32", [10**12], ""]},
        )),
    ],
    ids=lambda content: content[:40].decode(errors="replace"),
)  # fmt: skip
def test_what_no_rank_has_packed_is_refused_in_one_line(content):
    with pytest.raises(InputError) as found:
        messages.unpacked(content)
    assert "rank 0" in str(found.value)
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 500
