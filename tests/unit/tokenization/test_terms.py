"""Domain terms: found, kept only if they pay, measured on held-out documents, and old ids stay."""

from __future__ import annotations

import json
import random

import pytest

from llmctl.config.common import RunOptions
from llmctl.errors import UserError
from llmctl.tokenization import stage
from llmctl.tokenization import terms as domain
from llmctl.tokenization.config import TokenizeConfig
from llmctl.tokenization.encode import Encoder

COMMON = ["the", "a", "of", "and", "people", "house", "water", "walk", "table", "green", "time", "other", "small"]
ROOTS = ["hypertension", "nephropathy", "dermatitis", "arrhythmia", "sclerosis"]


def write_corpus(path, general=400, medical=400):
    """General prose, and medical prose full of long words that the rest lacks."""
    generator = random.Random(0)
    with open(path, "w") as out:
        for number in range(general):
            text = " ".join(generator.choices(COMMON, k=40))
            out.write(json.dumps({"id": f"g{number}", "source": "web", "text": text}) + "\n")
        for number in range(medical):
            text = " ".join(generator.choices(COMMON + ROOTS, k=40))
            out.write(json.dumps({"id": f"m{number}", "source": "clinic/notes", "text": text}) + "\n")


@pytest.fixture
def corpus(tmp_path):
    write_corpus(tmp_path / "corpus.jsonl")
    return tmp_path / "corpus.jsonl"


@pytest.fixture
def general(tmp_path):
    """A tokenizer that has never seen the domain."""
    write_corpus(tmp_path / "general.jsonl", medical=0)
    run(tmp_path / "general.jsonl", tmp_path / "general", vocab_size=300)
    return tmp_path / "general"


def run(source, output, **config):
    settings = TokenizeConfig(**config)
    settings.validate()
    return stage.run(source, output, settings, RunOptions(workers=1))


def load(folder):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))


def test_mined_terms_grow_an_existing_vocabulary_and_old_ids_stay(corpus, general, tmp_path):
    from transformers import AutoTokenizer

    manifest = run(
        corpus,
        tmp_path / "out",
        tokenizer=str(general),
        mine_domain_terms=50,
        domain_sources=["clinic*"],
    )
    report = manifest.statistics["domain_terms"]
    assert {term["text"].strip() for term in report["terms"]} == set(ROOTS)
    before, after = load(general).get_vocab(), load(tmp_path / "out").get_vocab()
    assert {token: after[token] for token in before} == before
    assert sorted(set(after.values()) - set(before.values())) == list(range(300, 300 + report["kept"]))
    measured = report["domain"]
    assert measured["after"]["tokens"] < 0.7 * measured["before"]["tokens"]
    assert measured["utilization_gain"] == pytest.approx(
        measured["after"]["utilization"] / measured["before"]["utilization"] - 1, abs=1e-4
    )
    assert report["elsewhere"]["after"]["tokens"] == report["elsewhere"]["before"]["tokens"]
    assert manifest.statistics["tokenizer"]["vocab_size"] == 300 + report["kept"]
    # Each new row of an embedding starts from the pieces of its text.
    growth = json.loads((tmp_path / "out" / "tokenizer" / "grown_tokens.json").read_text())
    assert growth["base_vocab_size"] == 300
    for row in growth["tokens"]:
        assert load(general).decode(row["pieces"]) == row["text"]
    loaded = AutoTokenizer.from_pretrained(tmp_path / "out" / "tokenizer")
    assert loaded.tokenize("the hypertension") == ["the", "Ġhypertension"]
    assert loaded.decode(loaded("of hypertension")["input_ids"]) == "of hypertension"


def test_a_trained_vocabulary_keeps_its_size(corpus, tmp_path):
    """Rare words of the domain do not reach the vocabulary by frequency; as terms they displace what is used less."""
    with open(corpus, "a") as out:
        for number in range(60):
            out.write(json.dumps({"id": f"r{number}", "source": "rare", "text": "electroencephalography " * 3}) + "\n")
    manifest = run(corpus, tmp_path / "out", vocab_size=300, mine_domain_terms=5, domain_sources=["rare"])
    assert manifest.statistics["tokenizer"]["vocab_size"] == 300
    report = manifest.statistics["domain_terms"]
    assert "electroencephalography" in {term["text"].strip() for term in report["terms"]}
    assert report["domain"]["after"]["tokens"] < report["domain"]["before"]["tokens"]
    assert load(tmp_path / "out").get_vocab_size() == 300
    assert manifest.statistics["round_trip"]["equal"] == manifest.statistics["round_trip"]["checked"] > 0


def test_a_list_of_terms_and_only_those_that_pay(corpus, general, tmp_path):
    (tmp_path / "terms.txt").write_text("# ours\nnephropathy\n\nnever heard of\nwater walk\n")
    manifest = run(
        corpus, tmp_path / "out", tokenizer=str(general), domain_terms=str(tmp_path / "terms.txt"), min_term_savings=5
    )
    kept = {term["text"] for term in manifest.statistics["domain_terms"]["terms"]}
    assert " nephropathy" in kept
    assert "never heard of" not in kept
    roles = [entry["role"] for entry in manifest.inputs]
    assert roles == ["source", "tokenizer", "terms"]
    (tmp_path / "terms.txt").write_text("dermatitis\n")
    with pytest.raises(UserError, match="another configuration or input"):
        run(
            corpus,
            tmp_path / "out",
            tokenizer=str(general),
            domain_terms=str(tmp_path / "terms.txt"),
            min_term_savings=5,
        )


@pytest.mark.parametrize(
    ("term", "text", "found"),
    [
        ("type 2 diabetes", "has type 2 diabetes, no", True),
        ("type 2 diabetes", "prototype 2 diabetes", False),
        ("高血压", "患者高血压了", True),
        ("hypertension", "of hypertension and", True),
        ("COVID-19", "the COVID-19 wave", True),
    ],
)
def test_phrases_and_scripts_without_blanks_are_added_tokens(small_tokenizer, term, text, found):
    tokenizer = small_tokenizer.load()
    words = domain.count_words(tokenizer, [text] * 9)
    listed = domain.listed(tokenizer, [term], words, [text] * 9)
    grown = domain.put_in(small_tokenizer, listed, keep_size=False)
    encoder = Encoder(grown.load(), grown.facts())
    ids, _ = encoder.encode([text])
    assert (ids.max() >= 500) == found
    assert encoder.gives_back(text, ids[:-1])


def test_terms_that_would_not_decode_are_left_out(small_tokenizer):
    """A lone added token of Latin-1 letters decodes as if its letters were bytes."""
    lossy = domain.Term("née", False, 100, 3)
    fine = domain.Term("高血压", False, 100, 5)
    assert domain.without_losses(small_tokenizer, [lossy, fine], keep_size=False) == [fine]


def test_terms_pay_or_stay_out():
    terms = [domain.Term(" a", True, 100, 4), domain.Term(" b", True, 10, 2), domain.Term(" c", True, 50, 1)]
    chosen = domain.choose(terms, 1_000_000, 5, None)
    assert [term.text for term in chosen] == [" a", " b"]
    assert domain.choose(terms, 1_000_000, 11, None) == chosen[:1]
    assert domain.choose(terms, 1_000_000, 5, [299, 10]) == chosen[:1]
    assert domain.choose(terms, 1_000_000, 5, [300]) == []
    assert domain.choose(terms, 1_000_000, 5, [0]) == chosen[:1]


@pytest.mark.parametrize("content", ["", "# nothing\n", "x" * 200])
def test_lists_without_terms_are_refused(tmp_path, content):
    (tmp_path / "terms.txt").write_text(content)
    with pytest.raises(UserError, match="term"):
        domain.read_terms(tmp_path / "terms.txt")


def test_a_domain_without_text_is_refused(corpus, general, tmp_path):
    with pytest.raises(UserError, match="no source matches") as failure:
        run(corpus, tmp_path / "out", tokenizer=str(general), mine_domain_terms=5, domain_sources=["nowhere"])
    assert "clinic/notes" in failure.value.hint


def test_domain_sources_alone_are_refused():
    with pytest.raises(UserError, match="goes with domain terms"):
        TokenizeConfig(domain_sources=["x"]).validate()


def test_other_kinds_of_tokenizer_are_refused(corpus, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"</s>": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "words.json"))
    with pytest.raises(UserError, match="byte-level BPE"):
        run(corpus, tmp_path / "out", tokenizer=str(tmp_path / "words.json"), mine_domain_terms=5)
