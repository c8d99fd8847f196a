"""Label schemas that users describe in JSON:

    {"name": "ours", "labels": {"NCR": 1, "ED": 2, "ET": 3},
     "regions": {"WT": ["NCR", "ED", "ET"], "TC": ["NCR", "ET"], "ET": ["ET"]},
     "learnt": ["NCR", "ED", "ET"],                                    default: all labels, by value
     "nested": [["WT", "ED"], ["TC", "NCR"], ["ET", "ET"]]}            default: the labels one by one

The keys are the fields of `LabelSchema`, with labels by name. The name gets a checksum of the rest, so that a cache or a run is
never taken for that of another schema. `described` writes any schema in this form, in full, and `restored` reads it.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import replace
from typing import Any

from lms3d.data.brats.schema import SCHEMAS, LabelSchema, remember
from lms3d.data.errors import DataError

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}(-[0-9a-f]{8})?")
_KEYS = ("name", "labels", "regions", "learnt", "nested")
_WHOLE = "WT"


def define(value: Any, *, where: str) -> LabelSchema:
    """The schema that `value` describes. `schema_named` knows it from now on. where: the source of `value`, for the DataError that
    every mistake raises."""
    schema = _parsed(value, where)
    checksum = zlib.crc32(json.dumps([schema.labels, schema.learnt, schema.regions, schema.nested]).encode())
    return remember(replace(schema, name=f"{schema.name}-{checksum:08x}"))


def described(schema: LabelSchema) -> dict[str, Any]:
    """A schema, of a data set or of the user's, as JSON values, with its name unchanged."""
    names = {value: name for name, value in schema.labels.items()}
    return {
        "name": schema.name,
        "labels": dict(schema.labels),
        "learnt": list(schema.learnt),
        "regions": {region: [names[value] for value in values] for region, values in schema.regions.items()},
        "nested": [[region, names[value]] for region, value in schema.nested],
    }


def restored(value: Any, *, where: str) -> LabelSchema:
    """The schema that `described` wrote as `value`. `schema_named` knows it from now on. DataError for a value that `described`
    cannot have written, and if the name is that of a data set whose labels differ here."""
    schema = _parsed(value, where)
    known = SCHEMAS.get(schema.name)
    if known is None:
        return remember(schema)
    if known != schema:
        raise _wrong(where, f"other labels called {schema.name} than this lms3d has", "the same")
    return known


def _parsed(value: Any, where: str) -> LabelSchema:
    """The schema that `value` describes, with its name unchanged."""
    keys = _of(dict, value, where, "labels", "a schema's name, or an object")
    if unknown := sorted(set(keys) - set(_KEYS)):
        raise _wrong(where, f"{unknown[0]!r} in labels", ", ".join(_KEYS))
    name = keys.get("name", "own")
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise _wrong(where, f"labels named {name!r}", "up to 40 letters, digits, - _ .")
    labels = _labels(keys.get("labels"), where)
    learnt = tuple(_known(_of(list, keys.get("learnt", list(labels)), where, "learnt", "label names"), labels, where))
    regions = {
        region: tuple(
            sorted(labels[name] for name in _known(_of(list, names, where, region, "label names"), labels, where))
        )
        for region, names in _of(dict, keys.get("regions"), where, "regions", "names with lists of labels").items()
    }
    if not learnt or len(set(learnt)) < len(learnt):
        raise _wrong(where, f"learnt {list(learnt)}", "different labels, at least one")
    if _WHOLE not in regions or not all(regions.values()):
        raise _wrong(where, f"regions {', '.join(regions) or 'none'}", f"{_WHOLE} among them, and labels in each")
    nested = _nested(keys.get("nested", [[label, label] for label in learnt]), labels, regions, where)
    schema = LabelSchema(name=name, labels=labels, learnt=learnt, regions=regions, nested=nested)
    _require_painted(schema, where)
    return schema


def _labels(value: Any, where: str) -> dict[str, int]:
    """Label -> value, sorted by value."""
    labels = _of(dict, value, where, "labels", "names with values")
    for name, number in labels.items():
        if type(number) is not int or not 1 <= number <= 255:
            raise _wrong(where, f"label {name} = {number!r}", "a whole number from 1 to 255")
    if not labels or len(set(labels.values())) < len(labels):
        raise _wrong(where, f"labels {labels}", "at least one, and a value of its own for each")
    return dict(sorted(labels.items(), key=lambda item: item[1]))


def _nested(
    value: Any, labels: dict[str, int], regions: dict[str, tuple[int, ...]], where: str
) -> tuple[tuple[str, int], ...]:
    nested = []
    for pair in _of(list, value, where, "nested", "pairs"):
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(name, str) for name in pair)):
            raise _wrong(where, f"{pair!r} in nested", "a region and a label")
        region, label = pair
        _known([label], labels, where)
        if region not in regions and region not in labels:
            raise _wrong(where, f"region {region!r} in nested", ", ".join(regions))
        nested.append((region, labels[label]))
    return tuple(nested)


def _require_painted(schema: LabelSchema, where: str) -> None:
    """DataError if the nested regions, painted one over the other, do not reproduce every learnt label."""
    for name in schema.learnt:
        painted = [value for region, value in schema.nested if schema.labels[name] in schema.values_of(region)]
        if painted[-1:] != [schema.labels[name]]:
            raise _wrong(
                where, f"nested regions that do not give {name} again", "regions from the outside in, with labels"
            )


def _known(names: list[Any], labels: dict[str, int], where: str) -> list[str]:
    for name in names:
        if not isinstance(name, str) or name not in labels:
            raise _wrong(where, f"label {name!r}", f"one of {', '.join(labels)}")
    return names


def _of(kind: type, value: Any, where: str, what: str, expected: str) -> Any:
    if not isinstance(value, kind):
        raise _wrong(where, f"{what}: {json.dumps(value)[:60]}", expected)
    return value


def _wrong(where: str, found: str, expected: str) -> DataError:
    return DataError(f"{where}: found {found}; expected {expected}; correct its labels")
