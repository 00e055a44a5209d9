"""An output folder is claimed, resumed, finished; everything that could lose or mix data is refused."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Annotated

import pytest

import llmctl
from llmctl.artifacts import output
from llmctl.artifacts.files import write_file
from llmctl.artifacts.inputs import open_input
from llmctl.artifacts.manifest import MANIFEST_NAME, STATE_FOLDER
from llmctl.artifacts.output import check_separate, open_output, require_space
from llmctl.config.common import RunOptions
from llmctl.config.schema import Opt
from llmctl.errors import RunFailed, UserError


@dataclass
class Config:
    """A configuration for tests."""

    threshold: Annotated[float, Opt("A number that counts.")] = 0.5
    log_every: Annotated[int, Opt("A number that does not.", identity=False)] = 10


@pytest.fixture
def source(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.txt").write_text("a")
    return tmp_path / "raw"


def claim(output, source, config=None, **options):
    return open_output(
        output,
        kind="documents",
        stage="filter",
        config=config or Config(),
        inputs=[open_input(source)],
        options=RunOptions(**options),
    )


def run(output, source, config=None, content=b"data", **options):
    """Do what a stage does; None if there was nothing to do."""
    with claim(output, source, config, **options) as out:
        if out.finished is not None:
            return None
        return out.finish([write_file(out.root, "data/a.parquet", content)], {"records": {"in": 1}})


def test_a_finished_folder_has_manifest_config_run_record_and_no_state(tmp_path, source):
    manifest = run(tmp_path / "out", source)
    assert sorted(os.listdir(tmp_path / "out")) == ["config.yaml", "data", "manifest.json", "run.json"]
    assert manifest.config == {"threshold": 0.5}
    assert manifest.inputs[0]["files"][0]["path"] == "a.txt"
    text = (tmp_path / "out" / MANIFEST_NAME).read_text()
    assert str(tmp_path) not in text, "a manifest names no place of this machine"


def test_equal_runs_have_equal_manifests(tmp_path, source):
    first, second = run(tmp_path / "one", source, workers=1), run(tmp_path / "two", source, workers=2)
    assert first.fingerprint == second.fingerprint


def test_the_same_command_again_is_up_to_date(tmp_path, source, capsys):
    run(tmp_path / "out", source)
    before = os.stat(tmp_path / "out" / MANIFEST_NAME).st_mtime_ns
    assert run(tmp_path / "out", source, Config(log_every=99)) is None
    assert "is up to date" in capsys.readouterr().err
    assert os.stat(tmp_path / "out" / MANIFEST_NAME).st_mtime_ns == before
    assert not (tmp_path / "out" / STATE_FOLDER).exists()


def test_touched_but_equal_files_are_up_to_date(tmp_path, source):
    run(tmp_path / "out", source)
    os.utime(source / "a.txt", (1, 1))
    assert run(tmp_path / "out", source) is None


@pytest.mark.parametrize("change", ["content", "another file"])
def test_a_changed_input_is_refused_and_nothing_is_touched(tmp_path, source, change):
    run(tmp_path / "out", source)
    (source / ("a.txt" if change == "content" else "b.txt")).write_text("b")
    with pytest.raises(UserError, match="the input has changed"):
        run(tmp_path / "out", source)
    assert (tmp_path / "out/data/a.parquet").read_bytes() == b"data"
    assert not (tmp_path / "out" / STATE_FOLDER).exists()


def test_another_configuration_is_refused_with_what_differs(tmp_path, source):
    run(tmp_path / "out", source)
    with pytest.raises(UserError, match=r"threshold.*0\.9") as raised:
        run(tmp_path / "out", source, Config(threshold=0.9))
    assert "--overwrite" in raised.value.hint


def test_another_stage_is_refused(tmp_path, source):
    run(tmp_path / "out", source)
    with pytest.raises(UserError, match=r"filter .* → dedup"):
        open_output(tmp_path / "out", kind="documents", stage="dedup", config=Config(), inputs=[open_input(source)])


@pytest.mark.parametrize("options", [{"if_changed": "overwrite"}, {"overwrite": True}])
def test_overwriting_starts_anew(tmp_path, source, options):
    run(tmp_path / "out", source)
    (tmp_path / "out" / "data" / "stale.parquet").write_bytes(b"stale")
    manifest = run(tmp_path / "out", source, Config(threshold=0.9), b"new", **options)
    assert manifest.config == {"threshold": 0.9}
    assert os.listdir(tmp_path / "out" / "data") == ["a.parquet"]
    assert (tmp_path / "out/data/a.parquet").read_bytes() == b"new"


def test_a_killed_run_is_resumed(tmp_path, source):
    with claim(tmp_path / "out", source) as out:
        record = write_file(out.root, "data/a.parquet", b"data")
        out.save_unit("read-00000", {"key": "k", "data": {"n": 1}}, [record])
        write_file(out.root, "data/b.parquet.tmp-1-ff", b"half")
    with claim(tmp_path / "out", source) as out:
        assert out.finished is None
        assert out.load_unit("read-00000")["data"] == {"n": 1}
        assert out.load_unit("read-00001") is None
        assert os.listdir(out.root / "data") == ["a.parquet"], "the half-written file is gone"
        (out.root / "data/a.parquet").write_bytes(b"cut")
        assert out.load_unit("read-00000") is None, "a unit whose file is not whole is done again"


@pytest.mark.parametrize("damage", ["{", '{"data": {}}', "[]", '{"files": [{"path": 5}]}'])
def test_a_broken_record_of_a_unit_is_no_record(tmp_path, source, damage):
    with claim(tmp_path / "out", source) as out:
        out.save_unit("read-00000", {}, [])
        (out.state / "units/read-00000.json").write_text(damage)
        assert out.load_unit("read-00000") is None


def test_resuming_with_another_configuration_or_input_is_refused(tmp_path, source):
    claim(tmp_path / "out", source).release()
    with pytest.raises(UserError, match=r"unfinished run .*threshold"):
        claim(tmp_path / "out", source, Config(threshold=0.9))
    (source / "b.txt").write_text("b")
    with pytest.raises(UserError, match="the list of input files has changed"):
        claim(tmp_path / "out", source)
    claim(tmp_path / "out", source, if_changed="overwrite").release()


def test_resuming_with_another_version_is_refused(tmp_path, source, monkeypatch):
    claim(tmp_path / "out", source).release()
    monkeypatch.setattr(llmctl, "__version__", "99")
    with pytest.raises(UserError, match="→ 99"):
        claim(tmp_path / "out", source)


def test_a_broken_claim_starts_anew(tmp_path, source):
    with claim(tmp_path / "out", source) as out:
        write_file(out.root, "data/a.parquet", b"data")
    for damage in ("{", "[]"):
        (tmp_path / "out" / STATE_FOLDER / "claim.json").write_text(damage)
        with claim(tmp_path / "out", source) as out:
            assert out.finished is None
            assert not (out.root / "data").exists()


def test_a_second_writer_is_refused(tmp_path, source):
    with claim(tmp_path / "out", source), pytest.raises(UserError, match=f"another llmctl run .*process {os.getpid()}"):
        claim(tmp_path / "out", source)
    claim(tmp_path / "out", source).release()


def test_a_foreign_folder_or_a_file_is_refused(tmp_path, source):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    for options in ({}, {"overwrite": True}, {"if_changed": "overwrite"}):
        with pytest.raises(UserError, match="not made by llmctl"):
            claim(tmp_path / "mine", source, **options)
    with pytest.raises(UserError, match="is a file"):
        claim(tmp_path / "mine" / "thesis.txt", source)
    assert os.listdir(tmp_path / "mine") == ["thesis.txt"]
    (tmp_path / "empty").mkdir()
    claim(tmp_path / "empty", source).release()


def test_a_manifest_of_another_program_is_not_ours_to_delete(tmp_path, source):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("<html>")
    for content in ('{"name": "a web site"}', "[]", "{"):
        (tmp_path / "site" / MANIFEST_NAME).write_text(content)
        with pytest.raises(UserError, match="not made by llmctl"):
            claim(tmp_path / "site", source, overwrite=True)
        assert (tmp_path / "site" / "index.html").exists()


def test_a_kill_while_a_folder_is_cleared_leaves_nothing_stale(tmp_path, source, monkeypatch):
    run(tmp_path / "out", source)
    killed = RuntimeError("killed")

    def kill(_path):
        raise killed

    with monkeypatch.context() as patch:
        patch.setattr(output.shutil, "rmtree", kill)
        with pytest.raises(RuntimeError):
            claim(tmp_path / "out", source, overwrite=True)
    assert not (tmp_path / "out" / MANIFEST_NAME).exists(), "what is half deleted is not finished"
    with claim(tmp_path / "out", source) as out:
        assert not (out.root / "data").exists()


def test_output_and_input_must_not_overlap(tmp_path, source):
    os.symlink(source, tmp_path / "link")
    for target in (source, source / "out", tmp_path, tmp_path / "link", tmp_path / "link" / "out"):
        with pytest.raises(UserError, match=r"is the input itself|lies inside"):
            claim(target, source)
        assert os.listdir(source) == ["a.txt"]
    check_separate(tmp_path / "raw2", [source])


def test_one_raw_file_may_lie_beside_the_output(tmp_path, source):
    claim(source / "out", source / "a.txt").release()
    with pytest.raises(UserError, match="is the input itself"):
        claim(source / "a.txt", source / "a.txt")


def test_a_dry_run_writes_nothing(tmp_path, source):
    with claim(tmp_path / "out", source, dry_run=True) as out:
        assert out.finished is None
    assert not (tmp_path / "out").exists()


def test_a_newer_schema_is_refused_before_anything_is_written(tmp_path, source):
    run(tmp_path / "out", source)
    path = tmp_path / "out" / MANIFEST_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 99}))
    with pytest.raises(UserError, match="schema 99"):
        run(tmp_path / "out", source)
    assert (tmp_path / "out/data/a.parquet").exists()


def test_a_disk_that_is_too_small_is_refused(tmp_path):
    require_space(tmp_path, 1)
    with pytest.raises(RunFailed, match="are needed"):
        require_space(tmp_path, 10**18)


def test_a_mistake_told_before_any_work_leaves_no_claim(tmp_path, source):
    """The command put right must not be refused because of the one that was wrong."""
    with pytest.raises(UserError, match="no cluster"), claim(tmp_path / "out", source, Config(threshold=0.1)):
        raise UserError("no cluster 3")
    assert not (tmp_path / "out").exists()
    with claim(tmp_path / "out", source, Config(threshold=0.2)) as out:
        assert out.finished is None


@pytest.mark.parametrize("failure", [RunFailed("disk"), UserError("late")])
def test_work_that_was_done_outlives_a_failure(tmp_path, source, failure):
    with pytest.raises(type(failure)), claim(tmp_path / "out", source) as out:
        out.save_unit("a", {"data": 1}, [write_file(out.root, "a.bin", b"x")])
        raise failure
    with claim(tmp_path / "out", source) as out:
        assert out.load_unit("a")["data"] == 1
