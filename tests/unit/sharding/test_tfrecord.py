"""TFRecord files: framing against tensorboard's reader, Examples against a protobuf descriptor of TensorFlow's."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmctl.artifacts.tfrecord import (
    BrokenRecord,
    check_record,
    decode_example,
    encode_entries,
    frame,
    iterate_records,
    join_example,
    map_file,
    masked_crc32c,
    varint,
)


def example_class():
    """Build `tf.train.Example` from its published definition (tensorflow/core/example/{example,feature}.proto)."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="tf_example.proto", package="tf", syntax="proto3")

    def message(name, *fields):
        added = file.message_type.add(name=name)
        for number, (field, kind, label, type_name) in enumerate(fields, 1):
            added.field.add(name=field, number=number, type=kind, label=label, type_name=type_name)
        return added

    one, many = kinds.LABEL_OPTIONAL, kinds.LABEL_REPEATED
    message("BytesList", ("value", kinds.TYPE_BYTES, many, None))
    message("FloatList", ("value", kinds.TYPE_FLOAT, many, None))
    message("Int64List", ("value", kinds.TYPE_INT64, many, None))
    feature = message(
        "Feature",
        ("bytes_list", kinds.TYPE_MESSAGE, one, ".tf.BytesList"),
        ("float_list", kinds.TYPE_MESSAGE, one, ".tf.FloatList"),
        ("int64_list", kinds.TYPE_MESSAGE, one, ".tf.Int64List"),
    )
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0
    features = message("Features", ("feature", kinds.TYPE_MESSAGE, many, ".tf.Features.FeatureEntry"))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=one)
    entry.field.add(name="value", number=2, type=kinds.TYPE_MESSAGE, label=one, type_name=".tf.Feature")
    message("Example", ("features", kinds.TYPE_MESSAGE, one, ".tf.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tf.Example"))


EXAMPLE = example_class()


def tensorboard_records(path: Path) -> list[bytes]:
    """Read a file with tensorboard's own TFRecord reader, which checks both checksums."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

    reader = PyRecordReader_New(str(path), 0, b"", None)
    records = []
    while True:
        try:
            reader.GetNext()
        except Exception as end:
            assert type(end).__name__ == "OutOfRangeError", end
            return records
        records.append(reader.record())


def write(path: Path, records: list[bytes]) -> None:
    path.write_bytes(b"".join(b"".join(frame(record)) for record in records))


def test_masked_crc_of_published_vectors():
    # RFC 3720 B.4: CRC32C of 32 zero bytes is 0x8A9136AA, of 32 bytes of ones 0x62A8AB43.
    for data, crc in ((bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)):
        expected = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        assert masked_crc32c(data) == expected


@settings(deadline=None, max_examples=60)
@given(st.lists(st.binary(max_size=300), max_size=6))
def test_tensorboard_reads_what_we_write(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("records") / "a.tfrecord"
    write(path, records)
    assert tensorboard_records(path) == records
    buffer = map_file(path)
    assert [buffer[span.start : span.end].tobytes() for span in iterate_records(buffer)] == records


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=20).filter(lambda name: name != "input_ids"),
        st.one_of(st.binary(max_size=300), st.integers(-(2**63), 2**63 - 1)),
        max_size=5,
    ),
    st.binary(max_size=20_000),
)
def test_protobuf_decodes_our_examples(features, ids):
    data = join_example(encode_entries(features), "input_ids", ids)
    assert data.endswith(ids)
    message = EXAMPLE.FromString(data)
    found = dict(message.features.feature.items())
    assert found.pop("input_ids").bytes_list.value[:] == [ids]
    for name, value in features.items():
        kind = found[name].bytes_list if isinstance(value, bytes) else found[name].int64_list
        assert kind.value[:] == [value]
    decoded = decode_example(data)
    assert decoded.pop("input_ids") == ids
    assert decoded == {name: value if isinstance(value, bytes) else [value] for name, value in features.items()}


def test_we_decode_examples_of_protobuf():
    message = EXAMPLE()
    message.features.feature["b"].bytes_list.value.extend([b"x", b"y"])
    message.features.feature["f"].float_list.value.extend([1.5, -2.0])
    message.features.feature["i"].int64_list.value.extend([-1, 2**40])
    message.features.feature["empty"].bytes_list.SetInParent()
    decoded = decode_example(message.SerializeToString(deterministic=True))
    assert decoded == {"b": [b"x", b"y"], "f": [1.5, -2.0], "i": [-1, 2**40], "empty": []}


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**64 - 1))
def test_varint(value):
    decoded = shift = 0
    encoded = varint(value)
    for byte in encoded:
        decoded |= (byte & 0x7F) << shift
        shift += 7
    assert decoded == value
    assert all(byte & 0x80 for byte in encoded[:-1])
    assert not encoded[-1] & 0x80


@pytest.mark.parametrize("data", [b"\x08\x01", b"\x0a\x05ab", b"\x0a\xff", b"\xff" * 11])
def test_other_bytes_are_no_example(data):
    with pytest.raises(ValueError, match=r"not a tf\.train\.Example"):
        decode_example(data)


def test_every_flipped_bit_is_found(tmp_path):
    good = b"".join(b"".join(frame(record)) for record in (b"first", b"second record"))
    for position in range(len(good)):
        broken = bytearray(good)
        broken[position] ^= 1 << (position % 8)
        with pytest.raises(BrokenRecord) as failure:
            list(iterate_records(np.frombuffer(bytes(broken), np.uint8)))
        assert failure.value.offset == (0 if position < 12 + 5 + 4 else 21)


@pytest.mark.parametrize("cut", [1, 5, 11, 13, 20])
def test_a_cut_file_is_found(cut):
    data = np.frombuffer(b"".join(frame(b"hello world"))[:cut], np.uint8)
    with pytest.raises(BrokenRecord, match="ends"):
        check_record(data, 0)


def test_a_huge_length_does_not_allocate():
    length = struct.pack("<Q", 2**63)
    data = length + struct.pack("<I", masked_crc32c(length)) + b"x"
    with pytest.raises(BrokenRecord, match="ends"):
        check_record(np.frombuffer(data, np.uint8), 0)


def test_an_empty_file_has_no_records(tmp_path):
    path = tmp_path / "empty.tfrecord"
    path.write_bytes(b"")
    assert list(iterate_records(map_file(path))) == []
