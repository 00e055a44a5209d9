"""TFRecord files of `tf.train.Example`, written and read without TensorFlow.

A record is framed as (little endian)

    uint64 length | uint32 masked_crc(length) | data | uint32 masked_crc(data)

with the CRC32C of Castagnoli, masked as TensorFlow does
(https://www.tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format details"). The data is one protocol
buffer: ``message Example { Features features = 1; }``, ``Features { map<string, Feature> feature = 1; }``,
``Feature { oneof { BytesList 1, FloatList 2, Int64List 3 } }``, each list with the repeated field ``value = 1``.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np

Feature = bytes | int | Sequence[int]

HEADER_BYTES = 12
FOOTER_BYTES = 4
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3


class BrokenRecord(Exception):
    """A record that cannot be trusted.

    Attributes:
        offset: where the record starts in the file.
        reason: one clause, such as ``"the checksum of its data is wrong"``.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"byte {offset}: {reason}")
        self.offset, self.reason = offset, reason


def masked_crc32c(data: Any) -> int:
    """Return the masked CRC32C of bytes or of a contiguous uint8 array."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


# -- protocol buffer ------------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    """Encode a non-negative integer below 2⁶⁴."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _field(number: int, data: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + varint(len(data)) + data


def _feature(value: Feature) -> bytes:
    if isinstance(value, bytes):
        return _field(_BYTES_LIST, _field(1, value))
    numbers = [value] if isinstance(value, int) else value
    packed = b"".join(varint(number & 0xFFFFFFFFFFFFFFFF) for number in numbers)
    return _field(_INT64_LIST, _field(1, packed))


def encode_entries(features: dict[str, Feature]) -> bytes:
    """Encode features as map entries, in their order; `join_example` makes an Example of them."""
    return b"".join(_entry(name, value) for name, value in features.items())


def _entry(name: str, value: Feature) -> bytes:
    return _field(1, _field(1, name.encode()) + _field(2, _feature(value)))


def join_example(entries: bytes, name: str, value: bytes) -> bytes:
    """Return the Example of the encoded `entries` and one more bytes feature.

    The value is the tail of the result, so that its position in a file is known without parsing.
    """
    return _field(1, entries + _entry(name, value))


def decode_example(data: bytes | memoryview) -> dict[str, Any]:
    """Decode a `tf.train.Example` into {name: bytes, list of bytes, list of ints or list of floats}.

    A list of one byte string is given as that string; numbers always are lists.

    Raises:
        ValueError: the bytes are not an Example.
    """
    view = memoryview(data)
    decoded: dict[str, Any] = {}
    for number, features in _fields(view):
        if number != 1:
            continue
        for entry_number, entry in _fields(features):
            if entry_number != 1:
                continue
            name, value = "", memoryview(b"")
            for part, content in _fields(entry):
                if part == 1:
                    name = bytes(content).decode()
                elif part == 2:
                    value = content
            decoded[name] = _decode_feature(value)
    return decoded


def _fields(view: memoryview) -> Iterator[tuple[int, memoryview]]:
    position = 0
    while position < len(view):
        key, position = _read_varint(view, position)
        if key & 7 != 2:
            raise ValueError("not a tf.train.Example")
        length, position = _read_varint(view, position)
        if position + length > len(view):
            raise ValueError("not a tf.train.Example: a field is longer than its message")
        yield key >> 3, view[position : position + length]
        position += length


def _read_varint(view: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(view) or shift > 63:
            raise ValueError("not a tf.train.Example: a number is cut")
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _decode_feature(view: memoryview) -> Any:
    for kind, content in _fields(view):
        if kind == _BYTES_LIST:
            values = [bytes(value) for _, value in _fields(content)]
            return values[0] if len(values) == 1 else values
        if kind == _FLOAT_LIST:
            return [number for _, packed in _fields(content) for number in np.frombuffer(packed, "<f4").tolist()]
        if kind == _INT64_LIST:
            return [number for _, packed in _fields(content) for number in _unpack_int64(packed)]
    return []


def _unpack_int64(packed: memoryview) -> Iterator[int]:
    position = 0
    while position < len(packed):
        value, position = _read_varint(packed, position)
        yield value - (1 << 64) if value >> 63 else value


# -- framing --------------------------------------------------------------------------------------------------------


def frame(data: bytes) -> list[bytes]:
    """Return the pieces of one record in the order in which they are written."""
    length = _LENGTH.pack(len(data))
    return [length, _CRC.pack(masked_crc32c(length)), data, _CRC.pack(masked_crc32c(data))]


def framed_bytes(data_bytes: int) -> int:
    """Return the size of a record with its frame."""
    return HEADER_BYTES + data_bytes + FOOTER_BYTES


@dataclass(frozen=True)
class Span:
    """Where a record lies: `offset` of its frame, `start` and `end` of its data."""

    offset: int
    start: int
    end: int


def check_header(buffer: np.ndarray, offset: int) -> Span:
    """Read the length of the record at `offset` of a file's bytes (uint8) and check the length's checksum.

    Raises:
        BrokenRecord: the file ends too early, or the checksum is wrong.
    """
    if offset + HEADER_BYTES > len(buffer):
        raise BrokenRecord(offset, f"the file ends inside the record's header, after {len(buffer) - offset} bytes")
    header = buffer[offset : offset + HEADER_BYTES].tobytes()
    if masked_crc32c(header[:8]) != _CRC.unpack(header[8:])[0]:
        raise BrokenRecord(offset, "the checksum of its length is wrong")
    start = offset + HEADER_BYTES
    end = start + _LENGTH.unpack(header[:8])[0]
    if end + FOOTER_BYTES > len(buffer):
        missing = end + FOOTER_BYTES - len(buffer)
        raise BrokenRecord(offset, f"the file ends {missing:,} bytes before the record does")
    return Span(offset, start, end)


def check_record(buffer: np.ndarray, offset: int) -> Span:
    """Check both checksums of the record at `offset` and return where its data lies.

    Raises:
        BrokenRecord: the file is cut or a checksum is wrong.
    """
    span = check_header(buffer, offset)
    stored = _CRC.unpack(buffer[span.end : span.end + FOOTER_BYTES].tobytes())[0]
    if masked_crc32c(buffer[span.start : span.end]) != stored:
        raise BrokenRecord(offset, f"the checksum of its data ({span.end - span.start:,} bytes) is wrong")
    return span


def iterate_records(buffer: np.ndarray) -> Iterator[Span]:
    """Yield every record of a file's bytes, checked.

    Raises:
        BrokenRecord: at the first record that cannot be trusted.
    """
    offset = 0
    while offset < len(buffer):
        span = check_record(buffer, offset)
        yield span
        offset = span.end + FOOTER_BYTES


def map_file(path: Any) -> np.ndarray:
    """Map a file read-only as uint8 (an empty file gives an empty array)."""
    if os.path.getsize(path) == 0:
        return np.zeros(0, np.uint8)
    return np.memmap(path, np.uint8, mode="r").view(np.ndarray)
