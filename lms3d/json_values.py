"""JSON that others may have written: read within bounds, and compared with the types of a dataclass."""

from __future__ import annotations

import json
import re
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

DEEPEST = 100
_STRING = r'(?s)"[^"\\]*(?:\\.[^"\\]*)*"?'  # its brackets do not nest


def parse(text: str | bytes) -> Any:
    """The value of a JSON text. ValueError for what is no JSON, or nested deeper than anything of ours: Python's parser recurses
    in C, and where a library has raised the limit of recursion a text of brackets ends the process."""
    content = (text.decode("utf-8") if isinstance(text, bytes) else text).removeprefix("\ufeff")  # of an editor
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", re.sub(_STRING, "", content)):
        depth += 1 if bracket in "[{" else -1
        if depth > DEEPEST:
            raise ValueError(f"nested deeper than {DEEPEST} levels")
    return json.loads(content)


def require_types(values: Any, of: type) -> None:
    """ValueError names the first value of another type than the field of this name has in the dataclass `of`."""
    for name, hint in get_type_hints(of).items():
        if name in values and not fits(values[name], hint):
            raise ValueError(f"found {name} {str(values[name])[:60]!r}, which is no {getattr(hint, '__name__', hint)}")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type; of a Mapping only its keys and values as such. Whole numbers are floats, too."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in arguments)
    if origin is tuple:
        members = arguments[:1] * len(value) if arguments[-1] is Ellipsis and isinstance(value, tuple) else arguments
        return isinstance(value, tuple) and len(value) == len(members) and all(map(fits, value, members))
    if hint is Any:
        return True
    if hint is float:
        return type(value) in (int, float)
    return isinstance(value, origin or hint) and (hint is bool or not isinstance(value, bool))
