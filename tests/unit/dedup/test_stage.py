"""What dedup keeps and removes, on small corpora; the cases are those that users of other tools reported."""

from __future__ import annotations

import itertools
import unicodedata

import numpy as np
import pytest
from corpora import char_shingles, dedup, dedup_texts, jaccard, shingles, with_changes, words, write_corpus
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmctl.errors import UserError


def text_of(tokens: list[str]) -> str:
    return " ".join(tokens)


def test_equal_texts_leave_one(tmp_path):
    result = dedup_texts(tmp_path, ["same text here"] * 3 + ["another one"])
    assert result.kept_ids == ["d0", "d3"]
    assert [row["reason"] for row in result.removed] == ["exact", "exact"]
    assert result.pair("d2") == ("d0", "exact", 1.0)


def test_white_space_and_unicode_form_do_not_count(tmp_path):
    composed = "Café au  lait,\r\nplease \u3000now"
    same = unicodedata.normalize("NFD", "Café au lait,\nplease now  ")
    result = dedup_texts(tmp_path, [composed, same, "CAFÉ AU LAIT PLEASE NOW"], method=["exact"])
    assert len(result.kept) == 2
    assert {pair["method"] for pair in result.pairs} == {"exact"}


def test_near_duplicate_is_found_with_its_exact_similarity(tmp_path):
    one = words(300)
    near, far = with_changes(one, 3), with_changes(one, 20, seed=2)
    texts = [text_of(one), text_of(near), text_of(far)]
    result = dedup_texts(tmp_path, texts)
    assert len(result.kept) == 2
    (pair,) = result.pairs
    by_id = {f"d{i}": shingles(text) for i, text in enumerate(texts)}
    assert pair["method"] == "fuzzy"
    assert pair["similarity"] == jaccard(by_id[pair["removed_id"]], by_id[pair["survivor_id"]])
    assert "d2" in result.kept_ids


def test_no_chain_removes_what_no_survivor_resembles(tmp_path):
    # a ~ b ~ c at 0.9, but a and c are only 0.83 alike: b may go for one of them, the other must stay.
    a = words(400)
    b = with_changes(a, 4, seed=1)
    c = list(b)
    for number, place in enumerate(range(50, 390, 85)):
        c[place] = f"other{number}"
    texts = [text_of(tokens) for tokens in (a, b, c)]
    sets = [shingles(text) for text in texts]
    assert jaccard(sets[0], sets[1]) >= 0.9
    assert jaccard(sets[1], sets[2]) >= 0.88
    assert jaccard(sets[0], sets[2]) < 0.88
    result = dedup_texts(tmp_path, texts, threshold=0.88)
    for pair in result.pairs:
        removed, survivor = (sets[int(pair[name][1:])] for name in ("removed_id", "survivor_id"))
        assert jaccard(removed, survivor) >= 0.88
    kept = [int(name[1:]) for name in result.kept_ids]
    assert all(jaccard(sets[x], sets[y]) < 0.88 for x, y in itertools.combinations(kept, 2))


def test_template_pages_are_not_wiped_out(tmp_path):
    # Pages of one template, each with words of its own: 0.7 alike, so all stay.
    skeleton = words(200)
    texts = [text_of(skeleton[:100] + words(30, seed=100 + i) + skeleton[100:]) for i in range(60)]
    assert 0.6 < jaccard(shingles(texts[0]), shingles(texts[1])) < 0.85
    assert len(dedup_texts(tmp_path, texts).kept) == 60


def test_nothing_to_remove(tmp_path):
    result = dedup_texts(tmp_path, [text_of(words(50, seed=i)) for i in range(20)])
    assert len(result.kept) == 20
    assert result.pairs == []
    assert result.clusters == []


@pytest.mark.parametrize("keep_index", [True, False])
@pytest.mark.parametrize("method", ["exact", "fuzzy", "reordered"])
@pytest.mark.parametrize("kind", ["words", "chinese", "short"])
def test_each_method_alone_keeps_distinct_and_removes_equal(tmp_path, method, kind, keep_index):
    rng = np.random.default_rng(0)
    texts = {
        "words": [text_of(words(80, seed=i)) for i in range(30)],
        "chinese": ["".join(chr(point) for point in rng.integers(0x4E00, 0x9000, 90)) for _ in range(30)],
        "short": [f"item {i}" for i in range(30)],
    }[kind]
    result = dedup_texts(tmp_path, [*texts, *texts, " "], method=[method], keep_index=keep_index)
    assert sorted(result.kept_texts) == sorted(texts)
    assert {row["reason"] for row in result.removed} == {method, "empty"}


def test_methods_can_be_switched_off(tmp_path):
    one = words(300)
    blocks = [text_of(words(12, seed=i)) for i in range(12)]
    texts = [text_of(one), text_of(with_changes(one, 2)), "\n\n".join(blocks), "\n\n".join(blocks[::-1])]
    assert len(dedup(write_corpus(tmp_path / "i", rows(texts)), tmp_path / "a", method=["exact"]).kept) == 4
    assert len(dedup(tmp_path / "i", tmp_path / "b", method=["fuzzy"]).kept) == 3
    assert len(dedup(tmp_path / "i", tmp_path / "c", method=["reordered"]).kept) == 3
    assert len(dedup(tmp_path / "i", tmp_path / "d").kept) == 2


def rows(texts):
    return [{"id": f"d{i}", "text": text} for i, text in enumerate(texts)]


@pytest.mark.parametrize("length", [10, 20, 50])
def test_reordered_paragraphs(tmp_path, length):
    blocks = [text_of(words(length, seed=i)) for i in range(12)]
    shuffled = [blocks[i] for i in np.random.default_rng(3).permutation(12)]
    texts = ["\n\n".join(blocks), "\n\n".join(shuffled)]
    assert jaccard(*map(shingles, texts)) < 0.9, "document MinHash at 0.9 does not see it"
    result = dedup_texts(tmp_path, texts)
    assert result.pair("d1") == ("d0", "reordered", 1.0)


def test_reordered_is_weighted_by_length(tmp_path):
    blocks = [text_of(words(30, seed=i)) for i in range(10)]
    short = ["a note", "see below", "the end"]
    mostly = "\n\n".join([*blocks[5:], *short, *blocks[:5]])  # many short paragraphs more, little text
    partly = "\n\n".join([*blocks[6:], text_of(words(60, seed=99)), *blocks[:4]])
    result = dedup_texts(tmp_path, ["\n\n".join(blocks), mostly, partly], method=["reordered"])
    assert [pair["method"] for pair in result.pairs] == ["reordered"]
    assert 0.85 < result.pairs[0]["similarity"] < 1.0
    assert "d2" in result.kept_ids


def test_same_order_is_not_reordered(tmp_path):
    blocks = [text_of(words(30, seed=i)) for i in range(10)]
    result = dedup_texts(tmp_path, ["\n\n".join(blocks), "\n\n".join(blocks[:9])])
    assert len(result.kept) == 2


def test_chinese(tmp_path):
    rng = np.random.default_rng(1)
    one = "".join(chr(point) for point in rng.integers(0x4E00, 0x9000, 400))
    near = one[:200] + "改" + one[201:]
    other = "".join(chr(point) for point in rng.integers(0x4E00, 0x9000, 400))
    result = dedup_texts(tmp_path, [one, near, other, "\n".join([one[:100], one[100:]])])
    assert result.kept_ids == ["d0", "d2"]
    found = {pair["removed_id"]: (pair["survivor_id"], pair["similarity"]) for pair in result.pairs}
    assert found == {"d1": ("d0", jaccard(char_shingles(one), char_shingles(near))), "d3": ("d0", 1.0)}
    assert jaccard(char_shingles(one), char_shingles(near)) >= 0.9


@pytest.mark.parametrize(
    "text",
    [
        "ภาษาไทยเป็นภาษาที่มีระดับเสียงของคำแน่นอนหรือวรรณยุกต์เช่นเดียวกับภาษาจีน",
        "日本語の文章には空白がありません。これは例です。",
        "ភាសាខ្មែរគឺជាភាសាកំណើតរបស់ជនជាតិខ្មែរ",
    ],
)
def test_scripts_without_spaces(tmp_path, text):
    result = dedup_texts(tmp_path, [text, text, text[::-1], text[: len(text) // 2]])
    assert len(result.kept) == 3


def test_empty_documents_have_their_own_rule(tmp_path):
    texts = ["", " \n\t", "\u3000", "something", ""]
    removed = dedup(write_corpus(tmp_path / "i", rows(texts)), tmp_path / "a")
    assert removed.kept_ids == ["d3"]
    assert {row["reason"] for row in removed.removed} == {"empty"}
    assert removed.pairs == []
    kept = dedup(tmp_path / "i", tmp_path / "b", empty="keep")
    assert kept.kept_ids == ["d0", "d1", "d2", "d3", "d4"]


def test_documents_of_signs_are_told_apart(tmp_path):
    result = dedup_texts(tmp_path, ["!!!", "???", "🙂", "!!!", "!!! "])
    assert result.kept_texts == ["!!!", "???", "🙂"]


def test_only_empty_documents(tmp_path):
    result = dedup_texts(tmp_path, ["", " "])
    assert result.kept == []
    assert result.manifest.statistics["by_reason"] == {"empty": 2}


def test_threshold_one_wants_equal_sets(tmp_path):
    one = words(100)
    result = dedup_texts(
        tmp_path, [text_of(one), text_of(one).upper(), text_of(with_changes(one, 1))], threshold=1.0, method=["fuzzy"]
    )
    assert result.kept_ids == ["d0", "d2"]
    assert result.pair("d1") == ("d0", "fuzzy", 1.0)


@pytest.mark.parametrize("threshold", [0, -0.1, 1.1, float("nan")])
def test_thresholds_out_of_bounds(tmp_path, threshold):
    with pytest.raises(UserError, match="threshold"):
        dedup_texts(tmp_path, ["a"], threshold=threshold)


def test_survivor_order(tmp_path):
    one = words(300)
    records = [
        {"id": "b", "source": "web", "score": 0.2, "text": text_of(one)},
        {"id": "a", "source": "web", "score": 0.2, "text": text_of(one)},
        {"id": "long", "source": "web", "score": 0.2, "text": text_of([*one, "more"])},
        {"id": "good", "source": "web", "score": 0.9, "text": text_of(one[:-1])},
        {"id": "wiki", "source": "wiki", "text": text_of(one[:-2])},
    ]
    source = write_corpus(tmp_path / "i", records)
    assert dedup(source, tmp_path / "1").kept_ids == ["long"]
    assert dedup(source, tmp_path / "2", quality_field="score").kept_ids == ["good"]
    best = dedup(source, tmp_path / "3", quality_field="score", source_priority=["wiki"])
    assert best.kept_ids == ["wiki"]
    few = write_corpus(tmp_path / "f", records[:2])
    assert dedup(few, tmp_path / "4").kept_ids == ["a"]


def test_equal_ids_are_different_records(tmp_path):
    one, other = text_of(words(50)), text_of(words(50, seed=1))
    source = write_corpus(tmp_path / "i", [{"id": "x", "text": text} for text in (one, other, one)])
    result = dedup(source, tmp_path / "o")
    assert result.kept_texts == [one, other]
    (pair,) = result.pairs
    assert (pair["removed_row"], pair["survivor_row"]) == (2, 0)
    assert pair["removed_file"] == pair["survivor_file"] == "docs.jsonl"


def test_duplicates_across_files_and_their_order(tmp_path):
    texts = [text_of(words(60, seed=i)) for i in range(6)]
    records = [*rows(texts), {"id": "again", "text": texts[2]}, {"id": "near", "text": texts[3] + " and"}]
    for name, order in (("one", records), ("two", records[::-1])):
        write_corpus(tmp_path / name, order[:4], "a.jsonl")
        write_corpus(tmp_path / name, order[4:], "b.jsonl")
    first, second = dedup(tmp_path / "one", tmp_path / "o1"), dedup(tmp_path / "two", tmp_path / "o2")
    assert sorted(first.kept_ids) == sorted(second.kept_ids)
    by_id = [{pair["removed_id"]: pair["survivor_id"] for pair in result.pairs} for result in (first, second)]
    assert by_id[0] == by_id[1]


@pytest.mark.parametrize("max_bucket", [2, 32])  # 2: nearly every bucket counts as large
@pytest.mark.parametrize("threshold", [0.5, 0.9])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000))
def test_equals_comparing_all_pairs(tmp_path_factory, threshold, max_bucket, seed):
    # Families of edited documents: every removal is right, and every pair above the threshold loses a member.
    rng = np.random.default_rng(seed)
    texts = []
    for family in range(6):
        base = words(int(rng.integers(3, 120)), seed=seed * 7 + family, vocabulary=int(rng.choice([4, 5000])))
        for copy in range(int(rng.integers(1, 6))):
            most = max(1, len(base) // 10)
            edits = min(int(rng.integers(0, most + 1)), len(base) - 1)
            texts.append(text_of(with_changes(base, edits, seed=copy) if len(base) > 8 else base))
    result = dedup_texts(
        tmp_path_factory.mktemp("all"),
        texts,
        threshold=threshold,
        method=["exact", "fuzzy"],
        max_bucket=max_bucket,
    )
    sets = [shingles(text) for text in texts]
    kept = {int(name[1:]) for name in result.kept_ids}
    for pair in result.pairs:
        similarity = jaccard(sets[int(pair["removed_id"][1:])], sets[int(pair["survivor_id"][1:])])
        assert similarity >= threshold
        assert pair["similarity"] == similarity
    alike = [(x, y) for x, y in itertools.combinations(range(len(texts)), 2) if jaccard(sets[x], sets[y]) >= threshold]
    left = [pair for pair in alike if set(pair) <= kept]
    assert len(left) <= 0.01 * len(alike) + (1 if len(alike) < 100 else 0)


def test_clusters_tell_sizes(tmp_path):
    one, other = text_of(words(50)), text_of(words(50, seed=1))
    result = dedup_texts(tmp_path, [one] * 4 + [other] * 2)
    assert [(row["size"], row["survivor_id"], row["exact"]) for row in result.clusters] == [(4, "d0", 3), (2, "d4", 1)]
    largest = result.manifest.statistics["largest_clusters"]
    assert [row["size"] for row in largest] == [4, 2]


def test_equal_text_of_a_removed_document_points_to_the_one_that_stays(tmp_path):
    one = words(300)
    best, near = text_of([*one, "tail"]), text_of(one)
    result = dedup_texts(tmp_path, [near, near, best])
    assert result.kept_ids == ["d2"]
    assert {pair["survivor_id"] for pair in result.pairs} == {"d2"}
    assert all(pair["similarity"] == jaccard(shingles(best), shingles(near)) for pair in result.pairs)


def test_removed_text_on_request(tmp_path):
    source = write_corpus(tmp_path / "i", rows(["same", "same"]))
    assert dedup(source, tmp_path / "a").removed[0]["text"] is None
    assert dedup(source, tmp_path / "b", removed_text=True).removed[0]["text"] == "same"


def test_lone_long_document(tmp_path):
    result = dedup_texts(tmp_path, ["word " * 200_000, text_of(words(150_000))])
    assert len(result.kept) == 2


def test_ten_thousand_equal_documents(tmp_path):
    result = dedup_texts(tmp_path, ["the same words in every one of them"] * 10_000)
    assert result.kept_ids == ["d0"]
    assert result.clusters[0]["size"] == 10_000


def test_ten_thousand_distinct_short_documents(tmp_path):
    assert len(dedup_texts(tmp_path, [f"item {i}" for i in range(10_000)]).kept) == 10_000


def test_thousands_of_alike_documents_cost_one_comparison_each(tmp_path, monkeypatch):
    from llmctl.dedup import verification

    compared = []
    exact = verification.jaccard_of_sets
    monkeypatch.setattr(verification, "jaccard_of_sets", lambda *args: compared.append(len(args[2])) or exact(*args))
    base = text_of(words(100))
    result = dedup_texts(tmp_path, [f"{base} tail{i:04d}" for i in range(3000)])
    assert len(result.kept) == 1
    assert sum(compared) < 2 * 3000


def test_large_bucket_of_unlike_documents_is_kept(tmp_path):
    skeleton = words(200)
    texts = [text_of(skeleton[:100] + words(8, seed=i) + skeleton[100:]) for i in range(300)]
    sets = [shingles(text) for text in texts]
    result = dedup_texts(tmp_path, texts, max_bucket=4, max_comparisons=8)
    assert result.manifest.statistics["compared"]["fuzzy_large_buckets"] > 0
    for pair in result.pairs:
        one, two = sets[int(pair["removed_id"][1:])], sets[int(pair["survivor_id"][1:])]
        assert jaccard(one, two) >= 0.9


def test_memory_and_workers_do_not_change_the_bytes(tmp_path):
    rng = np.random.default_rng(9)
    bases = [words(120, seed=i) for i in range(12)]
    texts = [text_of(with_changes(bases[i % 12], int(rng.integers(0, 4)), seed=i)) for i in range(150)]
    source = write_corpus(tmp_path / "in", rows(texts))
    block = {"block_bytes": 20_000}
    one = dedup(source, tmp_path / "1", read=block)
    assert len(one.manifest.statistics["index_blocks"]) > 2
    two = dedup(source, tmp_path / "2", workers=2, read=block, memory=16_000_000)
    assert one.manifest.fingerprint == two.manifest.fingerprint
    other_blocks = dedup(source, tmp_path / "3")
    assert (one.kept_ids, one.pairs) == (other_blocks.kept_ids, other_blocks.pairs)


def test_second_run_is_up_to_date_and_other_settings_are_refused(tmp_path):
    source = write_corpus(tmp_path / "in", rows(["a b", "a b", "c d"]))
    first = dedup(source, tmp_path / "out")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert dedup(source, tmp_path / "out").manifest.fingerprint == first.manifest.fingerprint
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    with pytest.raises(UserError, match="threshold"):
        dedup(source, tmp_path / "out", threshold=0.8)


def test_output_is_input_for_the_next(tmp_path):
    source = write_corpus(tmp_path / "in", rows(["a b", "a b", "c d"]))
    dedup(source, tmp_path / "one")
    again = dedup(tmp_path / "one", tmp_path / "two")
    assert again.kept_ids == ["d0", "d2"]
    assert again.removed == []
