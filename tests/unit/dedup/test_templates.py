"""The method `template`: one of a family stays, alone and after the other methods."""

from __future__ import annotations

import random

from corpora import dedup, dedup_texts, words, write_corpus

from llmctl.text.skeletons import token_sequences

PLACES = ["London", "Paris", "Berlin", "Boston", "Madrid", "Rome", "Oslo", "Dublin", "Vienna", "Prague"]
THINGS = ["garden", "coffee", "kitchen", "leather", "travel", "office", "music", "winter", "silver", "cotton"]


def advertisement(rng: random.Random) -> str:
    thing, place = rng.choice(THINGS), rng.choice(PLACES)
    return (
        f"Buy {thing} {rng.choice(THINGS)} online in {place} today at the best price from only {rng.randrange(999)} "
        f"dollars. We deliver your new {thing} to {place} within {rng.randrange(99)} hours, free of charge. Read what "
        f"our customers in {place} say about the {thing} and order now while stocks last."
    )


def family(size: int) -> list[str]:
    rng = random.Random(4)
    return [advertisement(rng) for _ in range(size)]


def prose(count: int) -> list[str]:
    return [" ".join(words(60, seed=i)) for i in range(count)]


def test_one_of_a_family_stays_and_prose_stays(tmp_path):
    result = dedup_texts(tmp_path, family(15) + prose(20), method=["template"])
    assert len(result.kept) == 21
    assert {row["reason"] for row in result.removed} == {"template"}
    assert {row["threshold"] for row in result.removed} == {0.5}
    assert all(0.5 <= pair["similarity"] < 1 and pair["method"] == "template" for pair in result.pairs)
    assert len({pair["survivor_id"] for pair in result.pairs}) == 1
    found = result.manifest.statistics["templates"]
    assert (found["families"], found["documents"]) == (1, 15)
    assert "online in {…} today at the best price" in found["largest"][0]["skeleton"]
    assert result.clusters[0]["template"] == 14


def test_several_may_be_kept_and_small_families_stay(tmp_path):
    texts = family(15)
    kept = dedup_texts(tmp_path / "a", texts, method=["template"], template_keep=4)
    assert len(kept.kept) == 4
    small = dedup_texts(tmp_path / "b", texts, method=["template"], template_min_family=16)
    assert small.removed == []


def test_alone_it_leaves_equal_texts_and_other_methods_leave_templates(tmp_path):
    texts = [*prose(3), *prose(3)]
    assert dedup_texts(tmp_path / "a", texts, method=["template"]).removed == []
    assert dedup_texts(tmp_path / "b", family(15)).manifest.statistics["by_reason"].get("template") is None


def test_after_other_methods_everyone_goes_for_a_document_that_stays(tmp_path):
    # Each page stands twice, and the second has a word more: the exact and fuzzy methods remove those first.
    pages = family(12)
    texts = pages + pages[:6] + [f"{page} now" for page in pages[6:]]
    result = dedup_texts(tmp_path, texts, method=["exact", "fuzzy", "template"])
    assert len(result.kept) == 1
    assert {pair["survivor_id"] for pair in result.pairs} == {result.kept[0]["id"]}


def test_the_better_source_stays(tmp_path):
    texts = family(14)
    records = [{"id": f"d{i}", "text": text, "source": "blog" if i else "press"} for i, text in enumerate(texts)]
    source = write_corpus(tmp_path / "in", records)
    result = dedup(source, tmp_path / "out", method=["template"], source_priority=["press"])
    assert result.kept_ids == ["d0"]


def test_any_number_of_workers_gives_the_same_bytes(tmp_path):
    records = [{"id": f"d{i}", "text": text} for i, text in enumerate(family(15) + prose(20))]
    source = write_corpus(tmp_path / "in", records)
    read = {"block_bytes": 2000}
    one = dedup(source, tmp_path / "a", method=["exact", "template"], read=read)
    two = dedup(source, tmp_path / "b", workers=2, method=["exact", "template"], read=read)
    assert [file.sha256 for file in one.manifest.files] == [file.sha256 for file in two.manifest.files]
    assert len(one.kept) == 21


def test_what_stays_is_compared_with_earlier_corpora_by_the_other_methods_only(tmp_path):
    first = write_corpus(tmp_path / "first", [{"id": f"a{i}", "text": text} for i, text in enumerate(family(15))])
    dedup(first, tmp_path / "clean", method=["exact", "fuzzy", "template"])
    again = dedup_texts(tmp_path, family(15) + prose(4), method=["exact", "fuzzy", "template"])
    assert len(again.kept) == 5


def test_sequences_of_removed_documents_are_empty():
    import numpy as np

    from llmctl.dedup.templates import without

    text = b"one twothree four"
    tokens, ends = token_sequences(np.frombuffer(text, np.uint8), np.array([0, 7, 12, 17]))
    kept, kept_ends = without(tokens, ends, np.array([1]))
    assert kept_ends.tolist() == [0, 2, 2, 3]
    assert kept.tolist() == [*tokens[:2], tokens[3]]
