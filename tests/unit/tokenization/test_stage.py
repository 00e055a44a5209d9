"""`run` of tokenize: counts, resume, equal bytes, and what it refuses."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from llmctl.artifacts.inputs import open_input
from llmctl.artifacts.raw.blocks import ReadOptions
from llmctl.artifacts.tokens import map_tokens, token_parts
from llmctl.config.common import RunOptions
from llmctl.errors import RunFailed, UserError
from llmctl.tokenization import build, encode, stage
from llmctl.tokenization.config import TokenizeConfig


@pytest.fixture
def tokenizer(small_tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    small_tokenizer.write(folder)
    return str(folder / "tokenizer")


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    rows = [
        {
            "id": str(n),
            "source": f"s{n % 3}",
            "lang": "en" if n % 2 else None,
            "text": f"the dog number {n} <|endoftext|>\n" * (n % 7),
        }
        for n in range(200)
    ]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (folder / "a.jsonl").write_text("\n".join(lines[:120]) + "\nnot json\n")
    (folder / "b.jsonl.gz").write_bytes(gzip.compress("\n".join(lines[120:]).encode()))
    return folder


def tokens(folder):
    """Return {document id: ids} of a `tokens` artifact, through the format as it is documented."""
    import pyarrow.parquet as pq

    manifest = json.loads((folder / "manifest.json").read_text())
    dtype = manifest["statistics"]["tokenizer"]["dtype"]
    found = {}
    for table_path in sorted(folder.glob("data/*.parquet")):
        ids = np.fromfile(table_path.with_suffix(".tokens"), "<" + dtype[0] + str(np.dtype(dtype).itemsize))
        rows = pq.read_table(table_path).to_pylist()
        assert sum(row["num_tokens"] for row in rows) == len(ids)
        for row in rows:
            found[row["id"]] = ids[row["start"] : row["start"] + row["num_tokens"]].tolist()
    return found


def run(source, output, options=None, **config):
    return stage.run(source, output, TokenizeConfig(**config), options or RunOptions(workers=1))


def test_every_document_is_there_and_decodes_to_its_text(corpus, tmp_path, tokenizer, small_tokenizer):
    manifest = run(corpus, tmp_path / "out", tokenizer=tokenizer)
    found = tokens(tmp_path / "out")
    loaded = small_tokenizer.load()
    assert len(found) == 200
    for number in range(200):
        *ids, last = found[str(number)]
        assert last == 0 and 0 not in ids
        assert loaded.decode(ids, skip_special_tokens=False) == f"the dog number {number} <|endoftext|>\n" * (
            number % 7
        )
    statistics = manifest.statistics
    assert statistics["records"] == {"in": 201, "kept": 200, "removed": 0, "invalid": 1}
    assert {row["path"]: (row["in"], row["kept"], row["invalid"]) for row in statistics["by_file"]} == {
        "a.jsonl": (121, 120, 1),
        "b.jsonl.gz": (80, 80, 0),
    }
    assert (
        statistics["tokens"] == sum(map(len, found.values())) == sum(row["tokens"] for row in statistics["by_source"])
    )
    assert statistics["documents"] == 200
    assert statistics["round_trip"]["checked"] == statistics["round_trip"]["equal"] > 0
    invalid = [json.loads(line) for path in (tmp_path / "out" / "invalid").iterdir() for line in path.open()]
    assert [(row["file"], row["line"]) for row in invalid] == [("a.jsonl", 121)]


def test_vocabulary_counts_every_token(corpus, tmp_path, tokenizer):
    import pyarrow.parquet as pq

    manifest = run(corpus, tmp_path / "out", tokenizer=tokenizer)
    table = pq.read_table(tmp_path / "out" / "vocabulary.parquet").to_pylist()
    counted = np.bincount([number for ids in tokens(tmp_path / "out").values() for number in ids], minlength=500)
    assert [row["count"] for row in table] == counted.tolist()
    assert table[0] == {"id": 0, "token": "<|endoftext|>", "count": 200}
    assert manifest.statistics["vocabulary"]["used"] == np.count_nonzero(counted[2:])


def test_workers_and_blocks_do_not_change_the_ids(corpus, tmp_path):
    small = {"vocab_size": 270, "read": ReadOptions(block_bytes=2000)}
    one = run(corpus, tmp_path / "one", **small)
    two = run(corpus, tmp_path / "two", RunOptions(workers=2), **small)
    assert one.to_mapping() == two.to_mapping()
    assert len(list((tmp_path / "one" / "data").iterdir())) > 4
    whole = run(corpus, tmp_path / "whole", vocab_size=270)
    assert tokens(tmp_path / "whole") == tokens(tmp_path / "one")
    assert whole.statistics["tokenizer"] == one.statistics["tokenizer"]


@pytest.mark.parametrize("phase", ["scan", "train", "encode"])
def test_a_stopped_run_goes_on(corpus, tmp_path, monkeypatch, phase):
    small = {"vocab_size": 270, "read": ReadOptions(block_bytes=2000)}
    clean = run(corpus, tmp_path / "clean", **small)
    calls = []
    target = {"scan": "scan_block", "train": "train", "encode": "encode_block"}[phase]
    module = stage if phase == "encode" else build
    original = getattr(module, target)

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) == (1 if phase == "train" else 3):
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(module, target, failing)
    with pytest.raises(KeyboardInterrupt):
        run(corpus, tmp_path / "out", **small)
    assert not (tmp_path / "out" / "manifest.json").exists()
    before = len(calls)
    assert run(corpus, tmp_path / "out", **small).to_mapping() == clean.to_mapping()
    if phase != "train":
        total = len(list((tmp_path / "clean").glob("data/*.tokens")))
        assert len(calls) - before == total - 2  # two blocks were finished, and are not done again
    assert not (tmp_path / "out" / "_state").exists()


def test_ids_of_two_parts_are_ids_of_the_whole(corpus, tmp_path, tokenizer):
    run(corpus, tmp_path / "whole", tokenizer=tokenizer)
    parts = {}
    for name in ("a.jsonl", "b.jsonl.gz"):
        run(corpus / name, tmp_path / f"of-{name}", tokenizer=tokenizer)
        parts |= tokens(tmp_path / f"of-{name}")
    assert parts == tokens(tmp_path / "whole")


def test_empty_texts_are_documents_of_one_token(tmp_path, tokenizer):
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": ""}\n{"text": "the dog"}\n')
    statistics = run(path, tmp_path / "out", tokenizer=tokenizer).statistics
    lengths = sorted(map(len, tokens(tmp_path / "out").values()))
    assert statistics["records"]["in"] == 2
    assert len(lengths) == statistics["documents"] and (statistics["documents"] == 1 or lengths[0] == 1)


def test_special_tokens_in_texts_only_when_allowed(tmp_path, tokenizer):
    path = tmp_path / "x.jsonl"
    path.write_text('{"id": "x", "text": "a<|endoftext|>b"}\n')
    run(path, tmp_path / "plain", tokenizer=tokenizer)
    run(path, tmp_path / "special", tokenizer=tokenizer, allow_special=True)
    assert tokens(tmp_path / "plain")["x"].count(0) == 1
    assert tokens(tmp_path / "special")["x"][1:] == [0, tokens(tmp_path / "special")["x"][2], 0]


def test_a_tokenizer_that_writes_eos_for_plain_text_is_found(tmp_path, small_tokenizer):
    """A pre-tokenizer that leaves `<|endoftext|>` whole lets the model find it in its vocabulary."""
    settings = json.loads(small_tokenizer.tokenizer_json)
    settings["pre_tokenizer"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    settings["model"]["ignore_merges"] = True
    (tmp_path / "leaky.json").write_text(json.dumps(settings))
    path = tmp_path / "x.jsonl"
    path.write_text('{"id": "fine", "text": "dog"}\n{"id": "bad", "text": "<|endoftext|>"}\n')
    with pytest.raises(RunFailed, match=r"'bad' in x\.jsonl"):
        run(path, tmp_path / "out", tokenizer=str(tmp_path / "leaky.json"))
    manifest = run(path, tmp_path / "out2", tokenizer=str(tmp_path / "leaky.json"), allow_special=True)
    assert manifest.statistics["documents"] == 2


def test_a_lossy_tokenizer_is_told_not_refused(tmp_path, small_tokenizer, capsys):
    settings = json.loads(small_tokenizer.tokenizer_json)
    settings["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"
    settings["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": "x"}
    (tmp_path / "lossy.json").write_text(json.dumps(settings))
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "fox"}\n')
    manifest = run(path, tmp_path / "out", tokenizer=str(tmp_path / "lossy.json"))
    assert manifest.statistics["round_trip"] == {"checked": 1, "equal": 0}
    assert "differ from their text" in capsys.readouterr().err


def test_a_fault_of_our_own_tokenizer_fails(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(encode.Encoder, "gives_back", lambda *_: False)
    with pytest.raises(RunFailed, match="does not decode to its text"):
        run(corpus, tmp_path / "out", vocab_size=270)


def test_another_tokenizer_is_another_input(corpus, tmp_path, tokenizer):
    run(corpus, tmp_path / "out", tokenizer=tokenizer)
    with pytest.raises(UserError, match="another configuration or input"):
        run(corpus, tmp_path / "out", vocab_size=270)


def test_nothing_to_train_on(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text("\n\n")
    with pytest.raises(UserError, match="no text"):
        run(path, tmp_path / "out")


def test_a_tokens_folder_of_one_part_without_its_ids_is_refused(corpus, tmp_path, tokenizer):
    run(corpus, tmp_path / "out", tokenizer=tokenizer)
    source = open_input(tmp_path / "out", kinds=("tokens",), raw=False)
    assert [part.name for part in token_parts(source)] == [
        path.stem for path in sorted((tmp_path / "out/data").glob("*.parquet"))
    ]
    source.files = [file for file in source.files if not file.path.endswith(".tokens")]
    with pytest.raises(UserError, match="lacks"):
        token_parts(source)


def test_half_an_id_is_refused(tmp_path):
    (tmp_path / "x.tokens").write_bytes(b"123")
    with pytest.raises(UserError, match="not whole"):
        map_tokens(tmp_path / "x.tokens", "uint16")
