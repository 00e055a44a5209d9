"""Perplexity: the model is a probability, its estimates are right, and filter ranks by source with it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmctl.artifacts.manifest import Manifest, read_manifest
from llmctl.artifacts.raw.blocks import ReadOptions
from llmctl.cli.app import run as run_command
from llmctl.config.common import RunOptions
from llmctl.errors import UserError
from llmctl.filtering.config import FilterConfig, FilterOptions
from llmctl.filtering.perplexity import model as model_module
from llmctl.filtering.perplexity import ranks as ranks_module
from llmctl.filtering.perplexity.checkpoint import checkpoint_surprise, read_checkpoint
from llmctl.filtering.perplexity.config import PerplexityConfig
from llmctl.filtering.perplexity.model import perplexities, read_model
from llmctl.filtering.perplexity.ranks import ranks
from llmctl.filtering.perplexity.stage import run as train
from llmctl.filtering.perplexity.training import count_ngrams, estimate
from llmctl.filtering.stage import run as filter_run
from llmctl.text.buffers import text_buffers
from llmctl.text.surprise import Table, build_table, surprise, token_stream

NOUNS = ("river", "house", "teacher", "garden", "engine", "letter", "winter", "bridge", "doctor", "village")
VERBS = ("sees", "builds", "remembers", "follows", "repairs", "describes", "crosses", "finds")


def sentence(draw: np.random.Generator) -> str:
    return f"The {draw.choice(NOUNS)} {draw.choice(VERBS)} the {draw.choice(NOUNS)} of the old {draw.choice(NOUNS)}."


def document(draw: np.random.Generator, sentences: int = 25) -> str:
    return " ".join(sentence(draw) for _ in range(sentences))


def shuffled(draw: np.random.Generator, text: str) -> str:
    return " ".join(draw.permutation(text.split()))


def fitted(texts: list[str], order: int) -> Table:
    tokens, ends = token_stream(*text_buffers(pa.array(texts, pa.large_string())), 1 << 30)
    found = estimate(count_ngrams(tokens, ends, order))
    return build_table(
        found.keys, found.log_probabilities.astype(np.float32), found.backoffs.astype(np.float32), order, found.unknown
    )


def total(text: str, table: Table) -> float:
    return float(surprise(*text_buffers(pa.array([text], pa.large_string())), table)["total"][0])


# -- the model


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_probabilities_after_any_context_add_up_to_one(order: int) -> None:
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(list("abcdefgh"), 30)) for _ in range(20)]
    table = fitted(texts, order)
    for context in ("", "a", "a b", "c d e", "h h h h", "zz a", "zz"):
        before = total(context, table)
        # All eight letters are common, so one more token is thought to be unseen yet.
        shares = [math.exp(before - total(f"{context} {token}".strip(), table)) for token in [*"abcdefgh", "zz"]]
        assert sum(shares) == pytest.approx(1, abs=1e-5), context


def test_estimates_by_hand() -> None:
    # Bigrams of "a b a c": START a, a b, b a, a c; the discount is the middle, as no bigram was seen twice.
    table = fitted(["a b a c"], 2)
    # Different tokens before a: START and b; before b: a; before c: a. One token twice, two once: D = 2 / (2 + 2).
    discount = 2 / (2 + 2 * 1)
    base = discount * 3 / 4 / (3 + 2)
    unigram = {"a": (2 - discount) / 4 + base, "b": (1 - discount) / 4 + base}
    after_start = (1 - 0.5) / 1 + 0.5 * unigram["a"]
    after_a = (1 - 0.5) / 2 + 0.5 * unigram["b"]
    assert total("a b", table) == pytest.approx(-math.log(after_start) - math.log(after_a), abs=1e-5)
    assert total("b", table) == pytest.approx(-math.log(0.5 * unigram["b"]), abs=1e-5)
    assert total("q", table) == pytest.approx(-math.log(0.5 * base), abs=1e-5)


def test_longer_contexts_and_more_text_help() -> None:
    draw = np.random.default_rng(1)
    known, unseen = [document(draw) for _ in range(150)], document(draw)
    by_order = [total(unseen, fitted(known, order)) for order in (1, 2, 3)]
    assert by_order[0] > by_order[1] > by_order[2]
    assert total(unseen, fitted(known, 3)) < total(unseen, fitted(known[:10], 3))


def test_any_script_and_no_text() -> None:
    table = fitted(["我们在城市里看见了一座古老的桥梁。" * 5, "Мы видим старый мост. " * 5], 3)
    assert total("一座古老的桥梁", table) < total("梁桥的老古座一", table)
    assert total("старый мост", table) < total("мост старый", table)
    found = perplexities(pa.array(["", "one two", "word " * 25], pa.large_string()), table)
    assert np.isnan(found["perplexity"]).tolist() == [True, True, False]
    assert np.isnan(found["perplexity_variation"]).all()


def test_variation_is_the_spread_of_the_windows() -> None:
    draw = np.random.default_rng(2)
    table = fitted([document(draw) for _ in range(50)], 3)
    even = document(draw, 60)
    half = document(draw, 30)
    uneven = half + " " + shuffled(draw, document(draw, 30))
    found = perplexities(pa.array([even, uneven], pa.large_string()), table)
    assert found["perplexity_variation"][0] < 0.6 * found["perplexity_variation"][1]


def test_ranks_treat_equals_alike_and_leave_out_small_sources() -> None:
    values = np.concatenate([[np.nan], np.repeat([3.0, 1.0, 2.0], 20)])
    found = ranks(values)
    assert np.isnan(found[0])
    assert [found[1], found[21], found[41]] == pytest.approx([5 / 6, 1 / 6, 3 / 6])
    assert np.isnan(ranks(values[:40])).all()


# -- the commands


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = np.random.default_rng(3)
    root = tmp_path_factory.mktemp("reference")
    write(root / "in.jsonl", [{"text": document(draw)} for _ in range(120)])
    train(root / "in.jsonl", root / "model", PerplexityConfig(held_out=0.2), RunOptions(workers=1))
    return root / "model"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two sources: in `good` three documents are shuffled words, in `chat` nearly all are, but for three."""
    draw = np.random.default_rng(4)
    records = []
    for n in range(80):
        for source, odd in (("good", n < 3), ("chat", n >= 3)):
            text = document(draw)
            text = shuffled(draw, text) if odd else text
            records.append({"id": f"{source}{n}", "text": text, "source": source})
    return write(tmp_path / "in.jsonl", records)


def table(manifest: Manifest, folder: str) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in manifest.paths(f"{folder}/")])


def config(**values: Any) -> FilterConfig:
    return FilterConfig(**{"preset": ["none"], "read": ReadOptions(block_bytes=60_000), **values})


def test_training_reports_unseen_text_and_writes_no_pickle(reference: Path) -> None:
    report = read_manifest(reference, kinds=("ngram_model",)).statistics["report"]
    assert len(report["ngrams"]) == 3
    assert 2 < report["held_out"]["perplexity"] < 10
    assert set(report["held_out"]["percentiles"]) == {"perplexity", "perplexity_variation"}
    assert {path.suffix for path in reference.iterdir()} <= {".json", ".yaml", ".safetensors"}


def test_the_same_text_gives_the_same_bytes(tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    source = write(tmp_path / "in.jsonl", [{"text": document(draw)} for _ in range(40)])
    chosen = PerplexityConfig(max_bytes=20_000)
    for name in ("one", "two"):
        train(source, tmp_path / name, chosen, RunOptions(workers=1))
    assert (tmp_path / "one/manifest.json").read_bytes() == (tmp_path / "two/manifest.json").read_bytes()
    assert read_manifest(tmp_path / "one").statistics["report"]["left_out"] > 5


def test_too_little_text_is_told(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [{"text": "Hello world"}])
    with pytest.raises(UserError, match="too few for a model"):
        train(source, tmp_path / "out", PerplexityConfig(), RunOptions(workers=1))
    (tmp_path / "none.jsonl").write_text("")
    with pytest.raises(UserError, match="too few for a model"):
        train(tmp_path / "none.jsonl", tmp_path / "out2", PerplexityConfig(), RunOptions(workers=1))


def test_limits_on_perplexity_itself(corpus: Path, reference: Path, tmp_path: Path) -> None:
    rules = config(rules={"perplexity": {"max": 30}})
    manifest = filter_run(corpus, tmp_path / "out", rules, FilterOptions(workers=1), perplexity_model=reference)
    kept = set(table(manifest, "data")["id"].to_pylist())
    assert kept == {f"good{n}" for n in range(3, 80)} | {f"chat{n}" for n in range(3)}
    assert {"perplexity", "perplexity_variation"} <= set(table(manifest, "attributes").column_names)
    assert "perplexity_rank" not in table(manifest, "attributes").column_names


def test_ranks_are_by_source(corpus: Path, reference: Path, tmp_path: Path) -> None:
    rules = config(rules={"perplexity_rank": {"max": 77 / 80}}, sources={"chat": {"perplexity_rank": {"max": 0.5}}})
    manifest = filter_run(corpus, tmp_path / "out", rules, FilterOptions(workers=1), perplexity_model=reference)
    removed = table(manifest, "removed")["id"].to_pylist()
    assert {name for name in removed if name.startswith("good")} == {f"good{n}" for n in range(3)}
    chat = {name for name in removed if name.startswith("chat")}
    assert len(chat) == 40
    assert not chat & {f"chat{n}" for n in range(3)}
    found = json.loads((tmp_path / "out/perplexity.json").read_text())
    assert [row["source"] for row in found["sources"]] == ["chat", "good"]
    assert (
        found["sources"][0]["perplexity"]["percentiles"]["50"] > found["sources"][1]["perplexity"]["percentiles"]["50"]
    )


def test_machine_text_is_smooth_and_even(corpus: Path, reference: Path, tmp_path: Path) -> None:
    rules = config(rules={"machine_text": {"min": 0.3}})
    manifest = filter_run(corpus, tmp_path / "out", rules, FilterOptions(workers=1), perplexity_model=reference)
    attributes = {row["id"]: row for row in table(manifest, "attributes").to_pylist()}
    removed = set(table(manifest, "removed")["id"].to_pylist())
    expected = {
        name for name, row in attributes.items() if row["perplexity_rank"] < 0.3 and row["variation_rank"] < 0.3
    }
    assert removed == expected != set()


def test_workers_and_stored_scores_change_no_byte(
    corpus: Path, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = config(rules={"machine_text": True})
    one = filter_run(corpus, tmp_path / "one", rules, FilterOptions(workers=1), perplexity_model=reference)
    filter_run(corpus, tmp_path / "two", rules, FilterOptions(workers=2), perplexity_model=reference)
    assert (tmp_path / "one/manifest.json").read_bytes() == (tmp_path / "two/manifest.json").read_bytes()
    assert len(one.paths("data/")) > 1
    other = config(rules={"machine_text": {"min": 0.5}})
    measured = filter_run(corpus, tmp_path / "measured", other, FilterOptions(workers=1), perplexity_model=reference)

    def refuse(*_: object) -> None:
        raise AssertionError("documents are scored again")

    monkeypatch.setattr(ranks_module, "perplexities_under", refuse)
    monkeypatch.setattr(model_module, "perplexities_under", refuse)
    options = FilterOptions(workers=1, reuse_scores=str(tmp_path / "one"))
    reused = filter_run(corpus, tmp_path / "reused", other, options, perplexity_model=reference)
    assert [file.sha256 for file in reused.files] == [file.sha256 for file in measured.files]


def test_wrong_models_are_refused(
    corpus: Path, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["filter", str(corpus), str(tmp_path / "out"), "--preset", "none", "--workers", "1"]
    for arguments, problem in (
        (["--set", "rules.machine_text=on"], "the rule `machine_text` needs a model"),
        (["--set", "rules.perplexity=on"], "the rule `perplexity` needs a limit of yours"),
        (["--perplexity-model", str(tmp_path / "nothing")], "does not exist"),
        (["--classifier", f"spam={reference}"], "classifier"),
    ):
        assert run_command([*command, *arguments]) == 2, problem
        assert problem in capsys.readouterr().err
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in reference.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    content = bytearray((copy / "ngrams.safetensors").read_bytes())
    content[3] = 255
    (copy / "ngrams.safetensors").write_bytes(content)
    assert run_command([*command, "--perplexity-model", str(copy)]) == 2
    assert "cannot be read as an n-gram model" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_command_line(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["perplexity", "train", str(corpus), str(tmp_path / "model")]
    assert run_command([*command, "--dry-run"]) == 0
    assert "would read 1 files" in capsys.readouterr().out
    assert run_command([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "ngram_model"
    assert run_command(command) == 0
    assert "up to date" in capsys.readouterr().err
    model = read_model(str(tmp_path / "model"), "x")
    assert model.order == 3


@pytest.mark.slow
def test_a_transformer_gives_the_same_columns(tmp_path: Path, corpus: Path) -> None:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    words = ["[UNK]", "the", ".", "of", "old", *NOUNS, *VERBS]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    shape = LlamaConfig(
        vocab_size=len(words), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    theirs = LlamaForCausalLM(shape).eval()
    theirs.save_pretrained(tmp_path / "hf")
    tokenizer.save(str(tmp_path / "hf/tokenizer.json"))

    text = document(np.random.default_rng(6), 20)
    ids = tokenizer.encode(text).ids
    found = checkpoint_surprise(pa.array([text, "river"], pa.large_string()), str(tmp_path / "hf"), "x")
    assert found["tokens"].tolist() == [len(ids) - 1, 0]
    # The model's context is 64 tokens: pieces of 63 predictions, each of which starts anew.
    total = 0.0
    with torch.inference_mode():
        for start in range(0, len(ids) - 1, 63):
            piece = torch.tensor([ids[start : start + 64]])
            loss = theirs(piece, labels=piece).loss
            total += float(loss) * (piece.shape[1] - 1)
    assert found["total"][0] == pytest.approx(total, rel=1e-4)

    rules = config(rules={"machine_text": {"min": 0.2}})
    chosen = {"perplexity_model": tmp_path / "hf"}
    filter_run(corpus, tmp_path / "one", rules, FilterOptions(workers=1), **chosen)
    filter_run(corpus, tmp_path / "two", rules, FilterOptions(workers=2), **chosen)
    assert (tmp_path / "one/manifest.json").read_bytes() == (tmp_path / "two/manifest.json").read_bytes()
    (tmp_path / "hf/tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="no tokenizer that can be read"):
        read_checkpoint(str(tmp_path / "hf"), "another")
