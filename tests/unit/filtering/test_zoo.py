"""Every odd kind of input file through the filter: no traceback, and no record without a place."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.zoo import Expected, build_zoo

from llmctl.artifacts.manifest import read_manifest
from llmctl.cli.app import run


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Expected]]:
    folder = tmp_path_factory.mktemp("zoo") / "raw"
    return folder, build_zoo(folder, num_identical=50, long_text_bytes=200_000)


@pytest.mark.parametrize("preset", ["general", "fineweb"])
def test_every_record_of_the_zoo_has_a_place(
    zoo: tuple[Path, dict[str, Expected]], tmp_path: Path, capsys: pytest.CaptureFixture[str], preset: str
) -> None:
    folder, expected = zoo
    out = tmp_path / "out"
    arguments = ["filter", str(folder), str(out), "--preset", preset, "--workers", "1", "--max-invalid-share", "1"]
    assert run([*arguments, "--set", "read.block_bytes=100000"]) == 0
    assert "records are invalid" in capsys.readouterr().err
    manifest = read_manifest(out)
    found = {row["path"]: row for row in manifest.statistics["by_file"]}
    for name, counts in expected.items():
        row = found.get(name, {"in": 0, "kept": 0, "removed": 0, "invalid": 0})
        assert (row["kept"] + row["removed"], row["invalid"]) == (counts.valid, counts.invalid), name
    assert not set(found) - set(expected)
    records = manifest.statistics["records"]
    assert records["in"] == sum(counts.records for counts in expected.values())
    kept = sum(pq.read_metadata(path).num_rows for path in manifest.paths("data/"))
    removed = sum(pq.read_metadata(path).num_rows for path in manifest.paths("removed/"))
    invalid = sum(len(path.read_bytes().splitlines()) for path in manifest.paths("invalid/"))
    assert (kept, removed, invalid) == (records["kept"], records["removed"], records["invalid"])


def test_the_zoo_passes_the_default_limit_with_status_3(zoo: tuple[Path, dict[str, Expected]], tmp_path: Path) -> None:
    assert run(["filter", str(zoo[0]), str(tmp_path / "out"), "--workers", "1"]) == 3
    assert read_manifest(tmp_path / "out").statistics["records"]["kept"] > 0
