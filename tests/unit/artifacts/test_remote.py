"""Folders in object storage as inputs and outputs, against a server that speaks S3."""

from __future__ import annotations

import hashlib
import json
import os
import sys

import pytest

from llmctl.artifacts import remote as module
from llmctl.artifacts.remote import Remote, cache_folder, url_of
from llmctl.artifacts.storage import explained, filesystem
from llmctl.cli.app import run
from llmctl.errors import RunFailed, UserError


@pytest.fixture(scope="module")
def server():
    from moto.server import ThreadedMotoServer

    moto = ThreadedMotoServer(port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    yield f"http://{host}:{port}"
    moto.stop()


@pytest.fixture
def bucket(server, tmp_path, monkeypatch):
    """An empty bucket, with nothing of it cached on this machine."""
    import s3fs

    for name, value in {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "LLMCTL_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    fs = s3fs.S3FileSystem(use_listings_cache=False)
    name = "bucket-" + hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]
    fs.mkdir(name)
    yield f"s3://{name}", fs
    fs.invalidate_cache()
    fs.rm(name, recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def raw(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    for part in range(2):
        rows = [{"id": f"{part}-{n}", "text": f"a text of words number {n} " * 5, "source": "s"} for n in range(40)]
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def hashes(folder):
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "run.json"
    }


def objects(fs, url):
    root = url.removeprefix("s3://")
    fs.invalidate_cache()
    return {
        path[len(root) + 1 :]: hashlib.sha256(fs.cat_file(path)).hexdigest()
        for path in fs.find(root)
        if not path.endswith("/run.json")
    }


def test_what_is_an_address(tmp_path, monkeypatch):
    from pathlib import Path

    assert url_of(Path("s3://bucket/a/b/")) == "s3://bucket/a/b"
    assert url_of(Path("file:///tmp/a")) == "file:///tmp/a"
    assert url_of(Path("memory://a")) == "memory://a"
    assert [url_of(Path(p)) for p in ("a/b", "/a", "./s3", "C:/x", "a:b")] == [None] * 5
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:").mkdir()
    assert url_of(Path("s3:/")) is None  # a folder that is really called so


@pytest.mark.slow
def test_the_chain_in_a_bucket_gives_the_bytes_of_local_folders(bucket, raw, tmp_path, capsys):
    url, fs = bucket
    fs.put(str(raw), f"{url}/raw", recursive=True)
    for stage, source, output, more in [
        ("filter", "raw", "clean", ["--preset", "c4"]),
        ("dedup", "clean", "unique", []),
        ("tokenize", "raw", "tokens", ["--vocab-size", "270"]),
        ("shard", "tokens", "shards", []),
    ]:
        here = raw if source == "raw" else tmp_path / source
        assert run([stage, str(here), str(tmp_path / output), "-q", "--workers", "1", *more]) == 0
        assert run([stage, f"{url}/{source}", f"{url}/{output}", "--workers", "1", *more]) == 0
        assert objects(fs, f"{url}/{output}") == hashes(tmp_path / output)
        assert not cache_folder(f"{url}/{output}", "output").exists()
    captured = capsys.readouterr()
    assert f"{url}/shards: " in captured.out
    assert "cache" not in captured.out + captured.err  # people read the address that they gave
    record = json.loads(fs.cat_file(f"{url}/shards/run.json"))
    assert record["inputs"] == {"source": f"{url}/tokens"}
    assert run(["shard", f"{url}/tokens", f"{url}/shards"]) == 0
    assert f"{url}/shards is up to date" in capsys.readouterr().err
    assert run(["shard", f"{url}/tokens", f"{url}/shards", "--shuffle"]) == 2
    assert "shuffle" in capsys.readouterr().err
    assert run(["show", f"{url}/shards", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checksums"] == "hold"
    assert run(["shard", f"{url}/tokens", f"{url}/shards", "--shuffle", "--overwrite", "-q"]) == 0
    assert json.loads(fs.cat_file(f"{url}/shards/manifest.json"))["config"]["shuffle"] is True
    assert f"{url[5:]}/shards/_upload.json" not in fs.find(f"{url}/shards")


@pytest.mark.slow
def test_verify_reads_the_bucket_and_not_the_copy(bucket, raw, tmp_path, capsys):
    url, fs = bucket
    assert run(["tokenize", str(raw), str(tmp_path / "tokens"), "--vocab-size", "270", "-q"]) == 0
    assert run(["shard", str(tmp_path / "tokens"), f"{url}/shards", "-q"]) == 0
    assert run(["shard", "--verify", f"{url}/shards"]) == 0
    path = next(path for path in fs.find(f"{url}/shards") if path.endswith(".tfrecord"))
    data = bytearray(fs.cat_file(path))
    data[100] ^= 1
    fs.pipe_file(path, bytes(data))
    capsys.readouterr()
    assert run(["shard", "--verify", f"{url}/shards"]) == 1
    assert "record 0 at byte 0" in capsys.readouterr().err
    fs.rm_file(path)
    assert run(["shard", "--verify", f"{url}/shards"]) == 1
    assert "missing" in capsys.readouterr().err


@pytest.mark.slow
def test_a_copy_that_differs_from_its_checksum_is_refused(bucket, raw, tmp_path, capsys):
    url, fs = bucket
    assert run(["tokenize", str(raw), f"{url}/tokens", "--vocab-size", "270", "-q"]) == 0
    path = next(path for path in fs.find(f"{url}/tokens") if path.endswith(".tokens"))
    data = bytearray(fs.cat_file(path))
    data[10] ^= 1
    fs.pipe_file(path, bytes(data))
    assert run(["shard", f"{url}/tokens", str(tmp_path / "shards")]) == 1
    err = capsys.readouterr().err
    assert "differs from its checksum" in err and path.removeprefix(url[5:]) in err


@pytest.mark.slow
def test_a_stop_while_copying_loses_nothing(bucket, raw, tmp_path, monkeypatch):
    """Whatever object is the last that arrived: there is no manifest, and the same command ends it."""
    url, fs = bucket
    assert run(["tokenize", str(raw), str(tmp_path / "tokens"), "--vocab-size", "270", "-q"]) == 0
    command = ["shard", str(tmp_path / "tokens"), f"{url}/shards", "-q", "--workers", "1"]
    assert run([*command[:2], str(tmp_path / "shards"), "-q"]) == 0
    original = module._transfer
    sent = []

    def stops(one, items, label, total):
        def counted(item):
            if label.startswith("writing") and len(sent) % 4 == 3:
                sent.append(None)
                raise RunFailed("the network went away")
            sent.append(item)
            return one(item)

        for item in items:
            counted(item)

    monkeypatch.setattr(module, "_transfer", stops)
    stops_seen = 0
    for _ in range(20):
        if run(command) == 0:
            break
        stops_seen += 1
        assert not fs.exists(f"{url}/shards/manifest.json")
        assert fs.exists(f"{url}/shards/_upload.json")
    monkeypatch.setattr(module, "_transfer", original)
    assert stops_seen > 1
    names = [item.path for item in sent if item is not None]
    assert len(names) == len(set(names))  # no file was sent twice
    assert objects(fs, f"{url}/shards") == hashes(tmp_path / "shards")


@pytest.mark.slow
def test_changed_raw_files_are_copied_again_and_others_are_not(bucket, raw, monkeypatch):
    url, fs = bucket
    fs.put(str(raw), f"{url}/raw", recursive=True)
    copied = []
    original = module._transfer
    monkeypatch.setattr(
        module,
        "_transfer",
        lambda one, items, *rest: copied.append([i[0] for i in items]) or original(one, items, *rest),
    )
    source = Remote(f"{url}/raw", cache_folder(f"{url}/raw", "input"))
    source.fetch(False)
    source.fetch(False)
    fs.pipe_file(f"{url}/raw/1.jsonl", b'{"text": "other"}\n')
    fs.rm_file(f"{url}/raw/0.jsonl")
    local = source.fetch(False)
    assert copied == [["0.jsonl", "1.jsonl"], [], ["1.jsonl"]]
    assert [path.name for path in local.iterdir()] == ["1.jsonl"]
    one = Remote(f"{url}/raw/1.jsonl", cache_folder(f"{url}/raw/1.jsonl", "input"))
    assert one.fetch(False).read_bytes() == b'{"text": "other"}\n'


@pytest.mark.slow
def test_what_is_not_ours_is_left_alone(bucket, raw, capsys):
    url, fs = bucket
    fs.pipe_file(f"{url}/mine/thesis.txt", b"x")
    for extra in ([], ["--overwrite"]):
        assert run(["filter", str(raw), f"{url}/mine", "--preset", "c4", *extra]) == 2
        assert "not made by llmctl" in capsys.readouterr().err
    fs.pipe_file(f"{url}/other/manifest.json", b"{}")
    assert run(["filter", str(raw), f"{url}/other", "--preset", "c4", "--overwrite"]) == 2
    assert fs.cat_file(f"{url}/mine/thesis.txt") == b"x"


@pytest.mark.slow
def test_two_machines_do_not_overwrite_each_other(bucket, raw, tmp_path, monkeypatch, capsys):
    url, fs = bucket
    assert run(["tokenize", str(raw), str(tmp_path / "tokens"), "--vocab-size", "270", "-q"]) == 0
    command = ["shard", str(tmp_path / "tokens"), f"{url}/shards", "-q"]

    def fails(*_):
        raise RunFailed("the network went away")

    with monkeypatch.context() as patched:
        patched.setattr(module, "_transfer", fails)
        assert run(command) == 1
    monkeypatch.setenv("LLMCTL_CACHE", str(tmp_path / "another machine"))
    assert run([*command, "--shuffle"]) == 0
    theirs = fs.cat_file(f"{url}/shards/manifest.json")
    monkeypatch.setenv("LLMCTL_CACHE", str(tmp_path / "cache"))
    assert run(command) == 2
    assert "another run has written" in capsys.readouterr().err
    assert fs.cat_file(f"{url}/shards/manifest.json") == theirs
    assert run([*command, "--overwrite"]) == 0
    assert fs.cat_file(f"{url}/shards/manifest.json") != theirs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "output", "words", "status"),
    [
        ("s3://no-such-bucket-of-ours/x", "out", "does not exist", 2),
        ("{bucket}/nothing", "out", "does not exist", 2),
        ("raw", "s3://no-such-bucket-of-ours/x", "no-such-bucket-of-ours", 2),
        ("{bucket}/raw", "{bucket}/raw/inside", "inside one another", 2),
        ("zz9://x/y", "out", "zz9:// is no storage", 2),
    ],
)
def test_mistakes_are_one_sentence(bucket, raw, monkeypatch, capsys, source, output, words, status):
    url, _ = bucket
    monkeypatch.chdir(raw.parent)
    command = ["filter", source.format(bucket=url), output.format(bucket=url), "--preset", "c4"]
    assert run(command) == status
    err = capsys.readouterr().err
    assert words in err and "hint: " in err and "Traceback" not in err


@pytest.mark.slow
def test_without_credentials_or_package(bucket, raw, monkeypatch, capsys, tmp_path):
    url, _ = bucket
    import s3fs

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    s3fs.S3FileSystem.clear_instance_cache()
    assert run(["filter", f"{url}/raw", str(tmp_path / "out"), "--preset", "c4"]) == 2
    err = capsys.readouterr().err
    assert "no access" in err and "AWS_ACCESS_KEY_ID" in err
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3")
    assert run(["filter", f"{url}/raw", str(tmp_path / "out"), "--preset", "c4"]) == 2
    assert "llmctl[s3]" in capsys.readouterr().err


def test_failures_of_a_storage_are_told():
    for failure, kind, words in [
        (PermissionError("Access Denied"), UserError, "no access to s3://a: Access Denied"),
        (ConnectionError("refused"), RunFailed, "cannot reach"),
        (TimeoutError(), RunFailed, "cannot reach"),
        (OSError(28, "No space left"), RunFailed, "no space left"),
        (RuntimeError("odd\nmore"), RunFailed, "cannot use s3://a: odd"),
    ]:
        with pytest.raises(kind, match=words), explained("s3://a"):
            raise failure
    with pytest.raises(UserError, match="is no storage"):
        filesystem("s33://a/b")


def test_other_storage_of_fsspec(raw, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LLMCTL_CACHE", str(tmp_path / "cache"))
    far = f"file://{tmp_path}/far"
    assert run(["tokenize", f"file://{raw}", far, "--vocab-size", "270", "-q"]) == 0
    assert run(["shard", far, "memory://shards", "-q"]) == 0
    assert run(["shard", "--verify", "memory://shards", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.strip().splitlines()[-1])["records"] == 80
    assert "_upload.json" not in os.listdir(tmp_path / "far")


def test_training_writes_to_this_machine(capsys):
    assert run(["pretrain", "shards", "s3://bucket/run"]) == 2
    assert "a folder of this machine" in capsys.readouterr().err
