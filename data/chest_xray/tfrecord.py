"""TFRecord files of `tf.train.Example`s, written without TensorFlow: importing it would cost each worker 4 seconds.

    record  = length uint64 | masked crc32c(length) uint32 | data | masked crc32c(data) uint32      (little-endian)
    Example = {1: Features},  Features = {1: entry, 1: entry, ...},  entry = {1: name, 2: Feature}
    Feature = {1: BytesList {1: bytes, ...}}  or  {3: Int64List {1: packed varints}}

Sources: tensorflow/core/lib/io/record_writer.h, tensorflow/core/example/{example,feature}.proto,
protobuf.dev/programming-guides/encoding. The tests read it back with TensorFlow.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import google_crc32c

Value = bytes | Sequence[int]
"""What a feature holds: one string of bytes, or numbers of 0 or more."""

FOOTER_BYTES = 4
"""Of a record, behind its data."""


def record(data: bytes) -> bytes:
    """`data` as a record of a TFRecord file."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, _masked_crc(length), data, _masked_crc(data)))


def example(features: Mapping[str, Value]) -> bytes:
    """A serialised `tf.train.Example`. The value of the last feature makes up the last bytes of the result."""
    return _field(1, b"".join(_field(1, _entry(name, value)) for name, value in features.items()))


def _entry(name: str, value: Value) -> bytes:
    if isinstance(value, bytes):
        feature = _field(1, _field(1, value))
    else:
        feature = _field(3, _field(1, b"".join(map(_varint, value))))
    return _field(1, name.encode()) + _field(2, feature)


def _field(number: int, content: bytes) -> bytes:
    """A field of a message whose content has a length: a message, bytes, or packed numbers (wire type 2)."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the top bit says that more follow."""
    if value < 0:
        raise ValueError(f"found {value}; expected a number of 0 or more")
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def _masked_crc(data: bytes) -> bytes:
    """Rotated and shifted, so that the checksum of data that holds checksums stays a good one."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
