"""Measure the detectors that look at a whole corpus: template content and density clusters.

    python benchmarks/detectors.py templates
    python benchmarks/detectors.py clusters
    python benchmarks/detectors.py clean

`templates` plants families of generated pages among real texts and prints the recall of each, and how many other
documents were taken for template content. `clusters` plants kinds of spam among real texts. `clean` runs the search for
templates over each real corpus by itself and prints what it finds there, with the skeletons, to be looked at.
The real texts are the shared corpora (LLMCTL_SHARED_DATA, or ../shared/data beside the checkout). Every figure comes
from `llmctl filter` as a user runs it.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
CORPORA = {
    "documentation": "raw/docs/en.jsonl.gz",
    "dictionary": "raw/dict/en.jsonl.zst",
    "web pages": "raw/web/pages-with-navigation.jsonl.gz",
    "Chinese law": "raw/zh/laws.jsonl.zst",
    "Chinese poetry": "raw/zh/poetry.jsonl.zst",
    "Chinese manuals": "raw/zh/manuals.jsonl.zst",
    "encyclopedia": "raw/wiki/articles.jsonl",
    "medical answers": "raw/medical/medquad.jsonl.zst",
    "25 languages": "raw/multi/all.parquet",
    "text messages": "labels/sms_spam.jsonl.gz",
    "Chinese comments": "labels/toxicity_zh.jsonl.zst",
    "Python": "raw/code/python.jsonl.zst",
    "JavaScript": "raw/code/javascript.jsonl.zst",
}
MIXED = ("documentation", "Chinese law", "Chinese poetry", "encyclopedia", "text messages")

WORDS = str.split
THINGS = WORDS("""blue garden coffee wooden running summer kitchen leather travel baby office music winter silver
steel cotton table lamp chair bottle watch phone camera book water light house family world time people""")
CITIES = WORDS(
    "London Paris Berlin Boston Madrid Rome Oslo Dublin Vienna Prague Chicago Denver Austin Lyon Turin Leeds"
)
ZH_CITIES = WORDS("北京 上海 广州 深圳 成都 杭州 武汉 西安 南京 重庆 天津 苏州 长沙 郑州 青岛 大连 厦门 昆明")
ZH_THINGS = WORDS("手机 茶叶 空调 家具 白酒 玉石 瓷器 丝绸 自行车 电动车 冰箱 洗衣机 月饼 火腿 陈醋 米粉 烤鸭")
# {w} a common word, {c} a city, {n} a number, {i} an identifier, {s} a sentence of another document; z… in Chinese.
TEMPLATES = {
    "advertisement": "Buy {w} {w} online in {c} today at the best price from only {n} dollars. We deliver your new {w} "
    "to {c} within {n} hours, free of charge. Read what our customers in {c} say about the {w} {w} and order now while "
    "stocks last.",
    "generated documentation": "The function {i} is defined in module {i}. It takes {n} arguments and returns a value "
    "of type {i}.\n\nParameters\n\n{i}: the {w} of the {w}\n\nRaises {i} if the value of {i} is not valid. See also "
    "{i}, {i}. This page was generated automatically from the source of {i}.",
    "listing with a foreign sentence": "Results for {w} {w}\n\nShowing {n} of {n} results\n\nSort by price, relevance, "
    "newest first\n\n{s}\n\nAdd to basket. Compare with similar items. Sign up for our newsletter and get ten percent "
    "off your first order.",
    "Chinese advertisement": "想在{zc}购买{zw}吗？我们为您提供最优惠的{zw}，价格仅为{n}元起，{zc}地区免费送货上门，"
    "支持货到付款，欢迎新老客户来电咨询订购。",
    "Chinese page with a foreign sentence": "{zw}是{zc}的著名特产，始于{n}年。{zs}。如需了解更多关于{zw}的信息，"
    "请访问我们的官方网站或者拨打客服电话，我们将竭诚为您服务。",
    "half slots (beyond the limit)": "{c} {c} was born in {n} in {c}. After studying {w} at the university of {c}, {w} "
    "became known for work on {w}. The {w} prize was awarded in {n}. {s}",
    "dense slots (beyond the limit)": "Cheap {w} in {c}: {w} from {n}. Find {w} near {c}, {w} and {w} for sale.",
}
SPAM = {
    "casino": WORDS("""casino bonus jackpot slots roulette poker bet win free spins blackjack deposit player
    gambling dealer table odds cash lucky vegas"""),
    "pharmacy": WORDS("""pills pharmacy prescription generic online dosage buy discount shipping tablets doctor
    overnight order medication safe price cheap"""),
    "Chinese loans": WORDS(
        "贷款 无抵押 快速放款 利率低 额度高 当天到账 信用卡套现 征信黑户 可办理 咨询热线 加微信 低息"
    ),
}
COMMON = WORDS("the and for with you your our best now here get all new to in of")


def shared_data() -> Path:
    """Return the folder of the shared corpora."""
    named = os.environ.get("LLMCTL_SHARED_DATA")
    for folder in (Path(named) if named else None, REPOSITORY.parent / "shared" / "data"):
        if folder is not None and folder.is_dir():
            return folder
    sys.exit("the shared corpora are not on this machine: set LLMCTL_SHARED_DATA")


def read_texts(path: Path) -> list[str]:
    """Return the texts of one file."""
    import zstandard

    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return [text for text in pq.read_table(path, columns=["text"])["text"].to_pylist() if text]
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    elif path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read()
    rows = (json.loads(line) for line in data.split(b"\n") if line.strip())
    return [row["text"] for row in rows if isinstance(row.get("text"), str) and row["text"]]


def run_filter(records: Iterable[tuple[str, str]], *arguments: str) -> tuple[dict[str, Any], dict[str, Any], float]:
    """Run `llmctl filter` on (kind, text) pairs.

    Returns:
        (attributes by column, the report of the pass, seconds)
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from llmctl.cli.app import run

    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "in.jsonl"), Path(folder, "out")
        rows = [{"id": f"{kind}#{n}", "text": text, "source": "all"} for n, (kind, text) in enumerate(records)]
        source.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        started = time.perf_counter()
        options = ["--preset", "none", "--detect-language", "off", "--quiet", "--workers", "1"]
        with contextlib.redirect_stdout(sys.stderr):
            status = run(["filter", str(source), str(output), *options, *arguments])
        seconds = time.perf_counter() - started
        if status:
            sys.exit(status)
        tables = [pq.read_table(path) for path in sorted((output / "attributes").glob("*.parquet"))]
        (report,) = (output / name for name in ("templates.json", "clusters.json") if (output / name).exists())
        return pa.concat_tables(tables).to_pydict(), json.loads(report.read_text()), seconds


def fill(template: str, rng: random.Random, sentences: dict[str, list[str]]) -> str:
    """Fill the slots of a template."""
    choices: dict[str, Callable[[], str]] = {
        "w": lambda: rng.choice(THINGS),
        "c": lambda: rng.choice(CITIES),
        "n": lambda: str(rng.randrange(2, 2000)),
        "i": lambda: f"{rng.choice(THINGS)}_{rng.choice(THINGS)}{rng.randrange(99)}",
        "s": lambda: rng.choice(sentences["en"]),
        "zc": lambda: rng.choice(ZH_CITIES),
        "zw": lambda: rng.choice(ZH_THINGS),
        "zs": lambda: rng.choice(sentences["zh"]),
    }
    return re.sub(r"\{(\w+)\}", lambda slot: choices[slot[1]](), template)


def spam(kind: str, rng: random.Random) -> str:
    """Return a page of spam: words of one trade in no order, so it is a kind of page but no template."""
    size = rng.randrange(60, 200)
    if kind.startswith("Chinese"):
        return "".join(rng.choice(SPAM[kind]) + rng.choice(["，", "", "。"]) for _ in range(size // 2))
    return " ".join(rng.choice(SPAM[kind] if rng.random() < 0.5 else COMMON) for _ in range(size))


def mixed_texts(data: Path) -> list[tuple[str, str]]:
    """Return the real texts that things are planted among."""
    return [("clean", text) for name in MIXED for text in read_texts(data / CORPORA[name])]


def measure_templates(data: Path) -> None:
    """Print recall by template and family size, and false alarms."""
    clean = mixed_texts(data)
    english = read_texts(data / CORPORA["documentation"])
    chinese = read_texts(data / CORPORA["Chinese law"])
    sentences = {
        "en": [s.strip() for t in english for s in re.split(r"(?<=[.])\s", t) if 40 < len(s) < 160 and "\n" not in s],
        "zh": [s for t in chinese for s in t.split("。") if 10 < len(s) < 40 and "\n" not in s],
    }
    for size in (10, 30, 300):
        rng = random.Random(size)
        records = [*clean]
        for name, template in TEMPLATES.items():
            records += [(name, fill(template, rng, sentences)) for _ in range(size)]
        rng.shuffle(records)
        attributes, _, seconds = run_filter(records, "--templates", "report")
        kinds = [name.split("#")[0] for name in attributes["id"]]
        found = Counter(
            kind for kind, family in zip(kinds, attributes["template_family"], strict=True) if family is not None
        )
        families = {number: set() for number in attributes["template_family"] if number is not None}
        for kind, number in zip(kinds, attributes["template_family"], strict=True):
            if number is not None:
                families[number].add(kind)
        print(f"\n{size} documents of each template among {len(clean):,} others ({seconds:.1f} s)")
        for name in TEMPLATES:
            print(f"  {name:40} recall {found[name] / size:.3f}")
        inside = sum(found[name] for name in TEMPLATES)
        total = max(inside + found["clean"], 1)
        mixed = sum(len(kinds) > 1 for kinds in families.values())
        print(f"  precision {inside / total:.4f}; {found['clean']} false alarms; {mixed} families of several templates")


def measure_clean(data: Path) -> None:
    """Print what the search for templates finds in each real corpus."""
    for name, path in CORPORA.items():
        texts = read_texts(data / path)
        _, report, seconds = run_filter(((name, text) for text in texts), "--templates", "report")
        families = report["families"]
        size = sum(len(text.encode()) for text in texts) / 1e6
        covered = sum(family["size"] for family in families)
        print(f"{name:18} {len(texts):6,} documents {size:5.1f} MB {seconds:5.1f} s: {covered} in {len(families)}")
        for family in families[:5]:
            print(f"    {family['size']:4} × {' '.join(family['skeleton'].split())[:110]}")


def measure_clusters(data: Path) -> None:
    """Print recall and precision of planted kinds, and how real corpora fall into clusters."""
    real = [(name, text) for name in (*MIXED, "medical answers") for text in read_texts(data / CORPORA[name])]
    for size in (100, 400):
        rng = random.Random(size)
        records = real + [(kind, spam(kind, rng)) for kind in SPAM for _ in range(size)]
        rng.shuffle(records)
        for sample in (20_000, 4_000):
            attributes, _, seconds = run_filter(records, "--clusters", "--set", f"cluster.sample={sample}")
            kinds = [name.split("#")[0] for name in attributes["id"]]
            print(f"\n{size} of each kind of spam among {len(real):,} others, sample {sample:,} ({seconds:.1f} s)")
            pairs = Counter(zip(kinds, attributes["cluster"], strict=True))
            sizes = Counter(attributes["cluster"])
            for kind in SPAM:
                inside = [(count, number) for (name, number), count in pairs.items() if name == kind and number]
                if not inside:
                    print(f"  {kind:16} in no cluster")
                    continue
                count, number = max(inside)
                print(f"  {kind:16} recall {count / size:.3f}  precision {count / sizes[number]:.3f}")
            majority = {
                number: max(count for (_, n), count in pairs.items() if n == number) for number in sizes if number
            }
            clustered = sum(sizes[number] for number in majority)
            print(
                f"  {len(majority)} clusters; {sizes[0] / len(kinds):.3f} of the documents in none; "
                f"{sum(majority.values()) / clustered:.3f} of the others in one that is mostly of their corpus"
            )


def main() -> None:
    """Run one measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("templates", "clusters", "clean"))
    chosen = {"templates": measure_templates, "clusters": measure_clusters, "clean": measure_clean}
    chosen[parser.parse_args().what](shared_data())


if __name__ == "__main__":
    main()
