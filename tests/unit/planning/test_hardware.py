"""The hardware table: every figure has its source, and a file of one's own comes before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmctl.errors import UserError
from llmctl.planning.hardware import find, load_table

FIGURES = ("peak_tflops", "matmul_tflops", "memory_gb", "memory_gbps", "link_gbps", "network_gbps", "power_w")


@pytest.mark.parametrize("name", sorted(load_table()))
def test_every_figure_names_its_source(name: str) -> None:
    hardware = load_table()[name]
    for figure in (*FIGURES, "price", "spot_price"):
        assert hardware.sources.get(figure), f"{name}.{figure}"
    assert hardware.matmul_tflops <= hardware.peak_tflops
    assert hardware.spot_price <= hardware.price
    assert hardware.attention in ("core", "flash")


def test_the_table_has_what_people_rent() -> None:
    assert {"v100-32g", "a100-40g", "a100-80g", "h100", "h200", "b200", "mi300x", "cpu"} <= set(load_table())


def test_figures_agree_with_the_published_table(tables) -> None:
    """Cells that were read in a stored copy: peaks, links and best matrix-product rates (bandwidths are not)."""
    import csv

    ours = {"A100-SXM-80GB": "a100-80g", "H100-SXM-80GB": "h100", "H200-SXM-141GB": "h200", "MI300X": "mi300x"}
    (path,) = tables.glob("g1_*.csv")
    checked = 0
    with open(path, newline="", encoding="utf-8") as handle:
        for row in csv.DictReader(handle):
            if row["accelerator"] in ours:
                hardware = find(ours[row["accelerator"]])
                assert hardware.peak_tflops == float(row["bf16_peak_tflops"])
                assert hardware.matmul_tflops == float(row["max_achievable_matmul_tflops"])
                assert hardware.link_gbps == float(row["intra_node_unidir_GBps"])
                checked += 1
    assert checked == len(ours)


def test_own_values_come_first(tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text('[a100-80g]\nnetwork_gbps = 12.5\n[mine]\nbase = "h100"\nprice = 2.0\n', encoding="utf-8")
    assert find("a100-80g", own).network_gbps == 12.5
    assert find("a100-80g", own).sources["network_gbps"] == "mine.toml"
    assert find("a100-80g", own).memory_gbps == find("a100-80g").memory_gbps
    mine = find("mine", own)
    assert (mine.price, mine.peak_tflops, mine.name) == (2.0, 989.0, "mine")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[a100-80g]\nnetwork_gbs = 1.0\n", "unknown key of hardware"),
        ("[a100-80g]\nprice = 'cheap'\n", "must be a number"),
        ("[a100-80g]\nmemory_gbps = 0\n", "must be more than 0"),
        ("[a100-80g]\nprice = -1\n", "must be a number of 0 or more"),
        ("[new]\nprice = 1.0\n", "has no `title`"),
        ('[new]\nbase = "old"\n', "based on `old`"),
        ("price = 1\n", "is a value, not an entry"),
        ("[broken\n", "mine.toml"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    own = tmp_path / "mine.toml"
    own.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=words):
        load_table(own)


def test_unknown_hardware_names_the_nearest() -> None:
    with pytest.raises(UserError) as failure:
        find("a100-80gb")
    assert failure.value.hint == "did you mean `a100-80g`?"
