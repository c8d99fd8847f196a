"""JSON that others may have written: read within bounds, and compared with the types of a dataclass."""

from __future__ import annotations

import codecs
import json
import re
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

DEEPEST = 100


class RepeatedKeyError(ValueError):
    """An object has a key twice. Of two labels of one name a parser would keep the last, in silence."""


_STRING = r'(?s)"[^"\\]*(?:\\.[^"\\]*)*"?'  # brackets within it do not nest


def decoded(content: bytes) -> str:
    """The text of a file that somebody's editor saved: UTF-8 with or without a byte order mark, or UTF-16 with one. ValueError
    for another encoding."""
    encodings = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
    return content.decode(encodings.get(content[:2], "utf-8-sig"))


def parse(text: str | bytes) -> Any:
    """The value of a JSON text. ValueError if it is no JSON, has a key twice in an object, or nests deeper than `DEEPEST` levels,
    which none of ours does.

    Python's parser recurses in C. If a library has raised the limit of recursion, a text of brackets would end the process.
    """
    content = decoded(text) if isinstance(text, bytes) else text.removeprefix("\ufeff")
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", re.sub(_STRING, "", content)):
        depth += 1 if bracket in "[{" else -1
        if depth > DEEPEST:
            raise ValueError(f"nested deeper than {DEEPEST} levels")
    return json.loads(content, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise RepeatedKeyError(f"key {repeated[:60]!r} twice in one object")
    return found


def require_types(values: Any, of: type) -> None:
    """ValueError, which names the first value whose type differs from that of the field of its name in the dataclass `of`."""
    for name, hint in get_type_hints(of).items():
        if name in values and not fits(values[name], hint):
            raise ValueError(f"found {name} {str(values[name])[:60]!r}, which is no {getattr(hint, '__name__', hint)}")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type. A whole number is a float, too. The items of a mapping are not looked at."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, member) for member in arguments)
    if origin is tuple:
        members = arguments[:1] * len(value) if arguments[-1] is Ellipsis and isinstance(value, tuple) else arguments
        return isinstance(value, tuple) and len(value) == len(members) and all(map(fits, value, members))
    if hint is Any:
        return True
    if hint is float:
        return type(value) in (int, float)
    return isinstance(value, origin or hint) and (hint is bool or not isinstance(value, bool))
