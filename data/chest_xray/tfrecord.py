"""Encodes TFRecord files of `tf.train.Example`s without TensorFlow, whose import would cost each worker 4 seconds.

    record  = length uint64 | masked crc32c(length) uint32 | data | masked crc32c(data) uint32      (little-endian)
    Example = {1: Features},  Features = {1: entry, 1: entry, ...},  entry = {1: name, 2: Feature}
    Feature = {1: BytesList {1: bytes, ...}}  or  {3: Int64List {1: packed varints}}

Sources: tensorflow/core/lib/io/record_writer.h, tensorflow/core/example/{example,feature}.proto,
protobuf.dev/programming-guides/encoding. The tests read the files with TensorFlow.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import google_crc32c

Value = bytes | Sequence[int]
"""The value of a feature: one string of bytes, or numbers of 0 or more."""

FOOTER_BYTES = 4
"""The bytes of a record after its data."""


def record(data: bytes) -> bytes:
    """The data as a record of a TFRecord file."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, _masked_crc(length), data, _masked_crc(data)))


def example(features: Mapping[str, Value]) -> bytes:
    """A serialised `tf.train.Example`, which ends with the value of the last feature."""
    return _field(1, b"".join(_field(1, _entry(name, value)) for name, value in features.items()))


def _entry(name: str, value: Value) -> bytes:
    if isinstance(value, bytes):
        feature = _field(1, _field(1, value))
    else:
        feature = _field(3, _field(1, b"".join(map(_varint, value))))
    return _field(1, name.encode()) + _field(2, feature)


def _field(number: int, content: bytes) -> bytes:
    """A field of a message with content of variable length (wire type 2): a message, bytes, or packed numbers."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """A number with seven bits in each byte, the lowest first. The top bit says whether more bytes follow."""
    if value < 0:
        raise ValueError(f"found {value}; expected a number of 0 or more")
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def _masked_crc(data: bytes) -> bytes:
    """The checksum, rotated and shifted, so that checksums of data that itself holds checksums remain good."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
