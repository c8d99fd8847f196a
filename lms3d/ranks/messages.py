"""The messages between ranks: values as JSON. Nothing in a message is ever executed.

    None, True, 1, 0.5, "text", [...]   themselves
    anything else                       {kind: content}; the kinds are at the end of this module

A dataclass can be sent if it is marked `sendable`; an error, if it is one of Python's own, of `lms3d.errors`, or marked as well.
The receiver looks class names up among these, makes no object of another class, and never imports a name.
"""

from __future__ import annotations

import base64
import builtins
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path, PosixPath
from typing import Any, TypeVar

from lms3d import errors
from lms3d.errors import InputError

T = TypeVar("T", bound=type)

_sendable: dict[str, type] = {}


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_known_error(kind: Any) -> bool:
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        return False
    return kind.__module__ == "builtins" or _sendable.get(_name(kind)) is kind


def _is_number(dtype: Any) -> bool:
    return dtype.kind in "biufc" or dtype.name == "bfloat16"


def sendable(kind: T) -> T:
    """A decorator: values of this dataclass, or errors of this class, can be sent. All ranks must have marked it."""
    _sendable[_name(kind)] = kind
    return kind


for _error in (errors.InputError, errors.StorageError, errors.Diverged, errors.DoesNotFit, errors.RankLost,
               errors.Interrupted):  # fmt: skip
    sendable(_error)


def packed(value: Any) -> bytes:
    """A value as bytes for `unpacked`. TypeError if a part of it cannot be sent."""
    return json.dumps(_plain(value), separators=(",", ":")).encode()


def unpacked(message: bytes) -> Any:
    """The value that `packed` made these bytes of. InputError for bytes that no rank has packed."""
    try:
        return _value(json.loads(message))
    except Exception as error:  # a stranger may have put anything there
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise InputError(
            f"a message of rank 0 is not what a rank writes ({reason}); expected JSON of this version of lms3d: start all "
            "ranks from one installation, and keep somebody else from the ports of the launcher (a firewall)"
        ) from None


def packed_outcome(make: Callable[[], Any]) -> tuple[bytes, BaseException | None]:
    """(message, error) of a call of `make`. The message is (value, error) in bytes; one of the two is None. A value that cannot be
    sent becomes a TypeError that can."""
    try:
        value = make()
    except BaseException as error:
        return _packed_error(error), error
    try:
        return packed((value, None)), None
    except Exception as error:
        fault = TypeError(f"World.from_chief: {error}")
        return packed((None, fault)), fault


def _packed_error(error: BaseException) -> bytes:
    try:
        message = packed((None, error))
        unpacked(message)  # an exception with an __init__ of its own may fail here
        return message
    except Exception:
        stand_in: Any = RuntimeError(f"{type(error).__name__}: {error}")
        if isinstance(code := getattr(error, "exit_code", None), int):
            stand_in.exit_code = code
        return packed((None, stand_in))


# -- to JSON -----------------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [_plain(part) for part in value]
    if kind in _TO_PLAIN:
        name, to_plain = _TO_PLAIN[kind]
        return {name: to_plain(value)}
    if kind.__module__ == "numpy":
        return _plain_array(value)
    if isinstance(value, BaseException) and _is_known_error(kind):
        reduced: Any = value.__reduce__()  # (class, arguments, attributes); an OSError has more arguments than `args`
        return {"error": [_name(kind), _plain(list(reduced[1])), _plain(dict(*reduced[2:]))]}
    if dataclasses.is_dataclass(kind) and _sendable.get(_name(kind)) is kind:
        fields = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"value": [_name(kind), fields]}
    raise TypeError(f"a {kind.__name__} cannot be sent to the other ranks")


_TO_PLAIN: dict[type, tuple[str, Callable[[Any], Any]]] = {
    tuple: ("tuple", lambda value: [_plain(part) for part in value]),
    dict: ("dict", lambda value: [[_plain(key), _plain(part)] for key, part in value.items()]),
    bytes: ("bytes", lambda value: base64.b64encode(value).decode()),
    PosixPath: ("path", str),
}


def _plain_array(value: Any) -> Any:
    import numpy as np

    array = np.asarray(value)
    if not _is_number(array.dtype):
        raise TypeError(f"an array of {array.dtype} cannot be sent to the other ranks")
    content = [array.dtype.name, list(array.shape), base64.b64encode(array.tobytes()).decode()]
    return {"array" if isinstance(value, np.ndarray) else "number": content}


# -- from JSON ---------------------------------------------------------------------------------------------------------


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_value(part) for part in plain]
    if isinstance(plain, dict):
        ((kind, content),) = plain.items()
        return _FROM_PLAIN[kind](content)
    return plain


def _array(content: Any) -> Any:
    import numpy as np

    name, shape, numbers = content
    if not _is_number(dtype := np.dtype(name)):
        raise ValueError(f"an array of {name}")
    return np.frombuffer(base64.b64decode(numbers, validate=True), dtype).reshape(_shape(shape)).copy()


def _shape(shape: Any) -> tuple[int, ...]:
    if not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"an array of shape {shape}")
    return tuple(shape)


def _error_of(content: Any) -> BaseException:
    name, arguments, state = content
    module, _, short = name.rpartition(".")
    kind = getattr(builtins, short) if module == "builtins" else _sendable[name]
    if not _is_known_error(kind):
        raise ValueError(f"{name} is not an error")
    error: BaseException = kind(*_list(_value(arguments)))
    vars(error).update(_value(state))
    return error


def _dataclass_of(content: Any) -> Any:
    name, fields = content
    return _sendable[name](**{field: _value(part) for field, part in fields.items()})


def _list(content: Any) -> list[Any]:
    if not isinstance(content, list):
        raise TypeError(f"found {type(content).__name__}, expected a list")
    return content


_FROM_PLAIN: dict[str, Callable[[Any], Any]] = {
    "tuple": lambda content: tuple(_value(part) for part in _list(content)),
    "dict": lambda content: {_value(key): _value(part) for key, part in _list(content)},
    "bytes": lambda content: base64.b64decode(content, validate=True),
    "path": Path,
    "array": _array,
    "number": lambda content: _array(content)[()],
    "error": _error_of,
    "value": _dataclass_of,
}
