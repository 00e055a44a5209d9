"""Every odd file gives the records it holds, whatever the size of the blocks."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.zoo import build_zoo

from llmctl.artifacts.inputs import open_input
from llmctl.artifacts.raw.blocks import ReadOptions
from llmctl.artifacts.raw.plan import plan_blocks
from llmctl.artifacts.raw.read import read_block


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo") / "input"
    return folder, build_zoo(folder, num_identical=50, long_text_bytes=200_000)


def counts(folder, options):
    valid, invalid = Counter(), Counter()
    for block in plan_blocks(open_input(folder), options):
        batch = read_block(block, options)
        assert len(batch.file_index) == batch.table.num_rows
        valid.update(batch.files[index] for index in batch.file_index)
        invalid.update(record.file for record in batch.invalid)
    return valid, invalid


@pytest.mark.parametrize("block_bytes", [1024, 100_000, 256_000_000])
def test_every_file_counts_as_expected(zoo, block_bytes):
    folder, expected = zoo
    valid, invalid = counts(folder, ReadOptions(block_bytes=block_bytes))
    found = {name: (valid[name], invalid[name]) for name in expected}
    assert found == {name: (item.valid, item.invalid) for name, item in expected.items()}
    assert set(valid) | set(invalid) <= set(expected)


def test_every_file_is_reported_even_without_records(zoo):
    folder, expected = zoo
    options = ReadOptions()
    files = {file for block in plan_blocks(open_input(folder), options) for file in read_block(block, options).files}
    assert files == set(expected)
