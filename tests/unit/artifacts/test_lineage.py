"""The chain of inputs is followed while the folders lie where they lay, and told as recorded where they do not."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

import pytest

from llmctl.artifacts.files import write_file
from llmctl.artifacts.inputs import open_input
from llmctl.artifacts.lineage import trace
from llmctl.artifacts.manifest import MANIFEST_NAME, RUN_NAME, read_manifest
from llmctl.artifacts.output import open_output


@dataclass
class Config:
    """Nothing to configure."""


def make(output, source, stage):
    with open_output(output, kind="documents", stage=stage, config=Config(), inputs=[open_input(source)]) as out:
        out.finish([write_file(out.root, "data/a.parquet", stage.encode())], {})
    return output


@pytest.fixture
def chain(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.txt").write_text("a")
    (tmp_path / "raw" / os.fsdecode(b"not-utf8-\xff.txt")).write_text("b")
    make(tmp_path / "clean", tmp_path / "raw", "filter")
    return make(tmp_path / "unique", tmp_path / "clean", "dedup")


def states(folder):
    found = []
    ancestors = trace(read_manifest(folder), folder)
    while ancestors:
        found.append((ancestors[0].name, ancestors[0].state))
        ancestors = ancestors[0].inputs
    return found


def test_the_chain_leads_back_to_the_raw_files(chain):
    assert states(chain) == [("clean", "matches"), ("raw", "matches")]
    (clean,) = trace(read_manifest(chain), chain)
    assert clean.stage == "filter" and clean.inputs[0].num_files == 2 and clean.inputs[0].bytes == 2
    assert clean.to_mapping()["inputs"][0]["kind"] == "raw"


def test_an_input_that_was_made_again_differently_has_changed(chain, tmp_path):
    with open(tmp_path / "clean" / MANIFEST_NAME, "a") as handle:
        handle.write(" ")
    assert states(chain) == [("clean", "changed")]
    (tmp_path / "clean" / MANIFEST_NAME).write_text("{")
    assert states(chain) == [("clean", "changed")]
    (tmp_path / "clean" / MANIFEST_NAME).unlink()
    assert states(chain) == [("clean", "changed")]


def test_raw_files_that_changed_in_size_or_are_gone(chain, tmp_path):
    (tmp_path / "raw" / "b.txt").write_text("one more")
    assert states(chain)[-1] == ("raw", "changed")
    (tmp_path / "raw" / "b.txt").unlink()
    (tmp_path / "raw" / "a.txt").write_text("longer")
    assert states(chain)[-1] == ("raw", "changed")
    shutil.rmtree(tmp_path / "raw")
    assert states(chain)[-1] == ("raw", "missing")


def test_an_input_that_is_gone_is_told_as_recorded(chain, tmp_path):
    fingerprint = read_manifest(tmp_path / "clean").fingerprint
    shutil.rmtree(tmp_path / "clean")
    (ancestor,) = trace(read_manifest(chain), chain)
    assert (ancestor.state, ancestor.fingerprint) == ("missing", fingerprint)


@pytest.mark.parametrize("record", ["", "{", "[]", '{"inputs": 5}', '{"inputs": {"source": 5}}'])
def test_without_a_usable_run_record_the_place_is_unknown(chain, record):
    (chain / RUN_NAME).write_text(record)
    assert states(chain) == [("clean", "unknown")]


def test_folders_that_were_moved_together_are_found(chain, tmp_path):
    os.mkdir(tmp_path / "moved")
    for name in ("raw", "clean", "unique"):
        os.rename(tmp_path / name, tmp_path / "moved" / name)
    assert states(tmp_path / "moved" / "unique") == [("clean", "matches"), ("raw", "matches")]


def test_one_raw_file(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    make(tmp_path / "clean", tmp_path / "a.txt", "filter")
    assert states(tmp_path / "clean") == [("a.txt", "matches")]
