"""What a data set says of itself: channels, labels, regions, the ignore label.

    nnU-Net v2      {"channel_names": {"0": "CT"}, "labels": {"background": 0, "liver": 1, "ignore": 2}}
    with regions    {..., "labels": {"background": 0, "whole": [1, 2], "core": 2}, "regions_class_order": [1, 2]}
    nnU-Net v1 and  {"modality": {"0": "CT"}, "labels": {"0": "background", "1": "liver"}}
    the Decathlon

Every mistake is a DataError that names the file.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lms3d.data.errors import DataError
from lms3d.data.volumes.labels import LabelSchema
from lms3d.data.volumes.targets import Classes, Regions

IGNORE = "ignore"
"""The name of the ignore label in dataset.json."""
MOST_LABEL = 255
_LONGEST = 200  # characters of a list of labels in a message
_REPEATED = "#"  # "MRI", "MRI#2": channels of one name are told apart, and are normalised alike


@dataclass(frozen=True, kw_only=True)
class Description:
    """The channels and the labels of a data set."""

    name: str
    channels: tuple[str, ...]
    """The names of the channels, in order and all different. See `plain`."""
    schema: LabelSchema
    has_regions: bool = False
    """Whether the labels are overlapping regions, for which `schema.nested` has the order of painting."""

    @property
    def targets(self) -> Classes | Regions:
        """What a network learns: the regions that the data set states, or else a class for each label."""
        return Regions(self.schema) if self.has_regions else Classes(self.schema)

    @property
    def in_words(self) -> str:
        """Channels and labels, for messages: "CT; labels liver, spleen"."""
        names = ", ".join(self.schema.regions)
        kind = "regions" if self.has_regions else "labels"
        return f"{', '.join(self.channels)}; {kind} {names if len(names) < _LONGEST else f'{names[:_LONGEST]}...'}"

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values, for config.json and packages."""
        schema = self.schema
        return {
            "name": self.name,
            "channels": list(self.channels),
            "labels": dict(schema.labels),
            "regions": {name: list(values) for name, values in schema.regions.items()},
            "nested": [list(pair) for pair in schema.nested],
            "ignore": schema.ignore,
            "has_regions": self.has_regions,
        }

    @staticmethod
    def from_json(value: Any, *, where: str) -> Description:
        """What `to_json` wrote. DataError for anything else. where: the file, for messages."""
        try:
            labels = {str(name): int(number) for name, number in value["labels"].items()}
            regions = {str(name): tuple(map(int, values)) for name, values in value["regions"].items()}
            nested = tuple((str(name), int(number)) for name, number in value["nested"])
            ignore = None if value["ignore"] is None else int(value["ignore"])
            channels = tuple(map(str, value["channels"]))
            name, has_regions = str(value["name"]), bool(value["has_regions"])
            known = {*labels.values(), *(number for values in regions.values() for number in values)}
            painted = {number for _, number in nested}
            if not (channels and labels and known | painted <= set(range(1, MOST_LABEL + 1))):
                raise ValueError("no channels, no labels, or labels beyond 255")
            if not {region for region, _ in nested} <= {*regions, *labels}:
                raise ValueError("an order of unknown regions")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise _wrong(where, f"no description of a data set ({error})", "what lms3d.train wrote") from None
        schema = _schema(name, labels, regions, nested, ignore, where)
        return Description(name=name, channels=channels, schema=schema, has_regions=has_regions)


def plain(channel: str) -> str:
    """The name of a channel as its data set wrote it, by which it is normalised."""
    return channel.partition(_REPEATED)[0]


def read(value: Any, *, name: str, where: str) -> Description:
    """The description in the content of a dataset.json, or of a manifest with the same keys. name: if it has none."""
    if not isinstance(value, dict):
        raise _wrong(where, f"{type(value).__name__}", "an object with channel_names and labels")
    stated = value.get("name")
    name = stated if isinstance(stated, str) and stated.strip() else name
    channels = _channels(value, where)
    numbers, ignore = _numbers(value.get("labels"), where)
    if any(len(values) > 1 for values in numbers.values()):
        schema = _of_regions(name, numbers, ignore, value.get("regions_class_order"), where)
        return Description(name=name, channels=channels, schema=schema, has_regions=True)
    labels = {label: values[0] for label, values in numbers.items()}
    regions, nested = {label: (number,) for label, number in labels.items()}, tuple(labels.items())
    return Description(name=name, channels=channels, schema=_schema(name, labels, regions, nested, ignore, where))


def _channels(value: Mapping[str, Any], where: str) -> tuple[str, ...]:
    key = "channel_names" if "channel_names" in value else "modality"
    named = value.get(key)
    if isinstance(named, list):
        named = {str(index): name for index, name in enumerate(named)}
    if not (isinstance(named, dict) and named and all(isinstance(name, str) for name in named.values())):
        raise _wrong(where, f"channel_names {_short(named)}", 'numbers with names, such as {"0": "CT"}')
    if sorted(named, key=_number) != [str(index) for index in range(len(named))]:
        raise _wrong(where, f"{key} numbered {', '.join(named)}", f"0 to {len(named) - 1}")
    seen: Counter[str] = Counter()
    channels = []
    for index in range(len(named)):
        name = named[str(index)].strip().replace(_REPEATED, "") or f"channel {index}"
        seen[name] += 1
        channels.append(name if seen[name] == 1 else f"{name}{_REPEATED}{seen[name]}")
    return tuple(channels)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else -1


def _numbers(labels: Any, where: str) -> tuple[dict[str, tuple[int, ...]], int | None]:
    """(label or region -> its values, sorted; the ignore label), without background."""
    if not isinstance(labels, dict) or not labels:
        raise _wrong(where, f"labels {_short(labels)}", 'names with values, such as {"background": 0, "liver": 1}')
    if _names_by_number(labels):
        _require_different(list(labels.values()), where)
        labels = {name: int(number) for number, name in labels.items()}
    found = {str(name): _values(str(name), value, where) for name, value in labels.items()}
    if nameless := [values for name, values in found.items() if not name.strip()]:
        raise _wrong(where, f"a label without a name for {', '.join(map(str, nameless[0]))}", "a name for each")
    background = [name for name, values in found.items() if values == (0,)]
    for name in background:
        del found[name]
    ignore = found.pop(IGNORE, None)
    if ignore is not None and len(ignore) != 1:
        raise _wrong(where, f"ignore label {list(ignore)}", "one value")
    if not found:
        raise _wrong(where, "no label but background", "at least one")
    single = [values for values in (*found.values(), *([ignore] if ignore else [])) if len(values) == 1]
    if len(set(single)) < len(single) or not all(values[0] for values in found.values()):
        raise _wrong(where, f"labels {_short(labels)}", "a value of its own for each label, 0 for background alone")
    return found, ignore[0] if ignore else None


def _names_by_number(labels: Mapping[Any, Any]) -> bool:
    """Whether labels are written as the Decathlon does, {"0": "background", "1": "liver"}. Names may be numbers, too, such as
    {"0": "background", "1": "1"}: the name of the background tells."""
    if not all(str(key).isdecimal() and isinstance(name, str) for key, name in labels.items()):
        return False
    return not any(name.isdecimal() for name in labels.values()) or not labels.get("0", "0").isdecimal()


def _require_different(names: list[str], where: str) -> None:
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise _wrong(where, f"label {repeated[0]!r} with several values", "every name once")


def _values(name: str, value: Any, where: str) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    if not values or not all(_is_label(one) for one in values):
        raise _wrong(where, f"label {name!r} = {_short(value)}", f"whole numbers from 0 to {MOST_LABEL}")
    return tuple(sorted({int(one) for one in values}))


def _is_label(value: Any) -> bool:
    number = value if type(value) is int else int(value) if isinstance(value, str) and value.isdecimal() else -1
    return 0 <= number <= MOST_LABEL


def _of_regions(
    name: str, regions: dict[str, tuple[int, ...]], ignore: int | None, order: Any, where: str
) -> LabelSchema:
    """The schema of regions. Its labels are called as a region that has this value alone, or else by their numbers."""
    if not (isinstance(order, list) and len(order) == len(regions) and all(map(_is_label, order))):
        raise _wrong(
            where, f"regions_class_order {_short(order)}", f"a value for each of {', '.join(regions)}, in this order"
        )
    alone = {values[0]: region for region, values in regions.items() if len(values) == 1}
    every = sorted({number for values in regions.values() for number in values} | {int(number) for number in order})
    labels = {alone.get(number, str(number)): number for number in every if number}
    nested = tuple((region, int(number)) for region, number in zip(regions, order, strict=True))
    return _schema(name, labels, regions, nested, ignore, where)


def _schema(
    name: str, labels: Mapping[str, int], regions: Mapping[str, tuple[int, ...]], nested: tuple[tuple[str, int], ...],
    ignore: int | None, where: str,
) -> LabelSchema:  # fmt: skip
    content = json.dumps([labels, regions, nested, ignore])
    slug = re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.")[:40] or "data"
    return LabelSchema(
        name=f"{slug}-{zlib.crc32(content.encode()):08x}", labels=labels, learnt=tuple(labels), regions=regions, nested=nested,
        ignore=ignore, advice=f"correct the labels in {where}",
    )  # fmt: skip


def _short(value: Any) -> str:
    return json.dumps(value, default=str)[:80]


def _wrong(where: str, found: str, expected: str) -> DataError:
    return DataError(f"{where}: found {found}; expected {expected}; correct this file")
