"""Make the demonstration's conversations, preference pairs and prompts from the two dictionaries in the corpus.

A conversation asks for the meaning of a term and answers with its definition's first sentences. A preference pair sets
that answer against a worse one: the words shuffled, a phrase repeated over and over, the answer to another question,
or an answer that goes on and on. One term in ten is held out for validation.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

from llmctl.demo.raw import read_corpus

QUESTIONS = (
    "What does “{term}” mean?",
    "Define “{term}”.",
    "What is the meaning of “{term}”?",
    "Explain the word “{term}”.",
)
MAX_ANSWER_CHARS = 240
HELD_OUT_EVERY = 10


@dataclass(frozen=True)
class Entry:
    """A term and its definition in one line."""

    term: str
    answer: str


def entries() -> list[Entry]:
    """Return the dictionary entries whose definitions make a short answer, in a fixed order."""
    found = []
    for record in read_corpus("en_dict-dict-devil"):
        match = re.match(r"^([A-Z][A-Z' -]+), [a-z.]+\s+(.*)", record["text"], re.S)
        if match:
            found.append((match[1].capitalize(), match[2]))
    for record in read_corpus("en_dict-dict-jargon"):
        head, _, body = record["text"].partition("\n")
        # Pronunciation and word class stand on the second line, the definition is indented below it.
        parts = body.split("\n\n", 1)
        if len(parts) == 2:
            found.append((head.strip(), parts[1]))
    cleaned = [Entry(term, answer) for term, body in found if (answer := _first_sentences(body))]
    unique = {entry.term.lower(): entry for entry in cleaned}
    return [unique[key] for key in sorted(unique)]


def _first_sentences(body: str) -> str | None:
    """Return the first one or two sentences of a definition, or None if they do not read as an answer."""
    paragraph = body.strip().split("\n\n")[0]
    text = re.sub(r"\s+", " ", paragraph).replace("{ ", "{")
    text = re.sub(r"[{}]", "", text)
    text = re.sub(r"^(?:\[[^]]*\]|\([^)]*\)|\d+\.|[a-z]+\.)\s*", "", text.strip())
    sentences = re.findall(r"[^.!?]+[.!?]+[”\"')]*", text)
    answer = ""
    for sentence in sentences[:2]:
        if len(answer) + len(sentence) > MAX_ANSWER_CHARS:
            break
        answer += sentence
    answer = answer.strip()
    if not len(answer) >= 20 or answer.startswith(("See ", "Syn", "Compare", "Var")):
        return None
    return answer[0].upper() + answer[1:]


def _question(entry: Entry, random_numbers: random.Random) -> str:
    return random_numbers.choice(QUESTIONS).format(term=entry.term)


def _worse(entry: Entry, others: list[Entry], random_numbers: random.Random) -> str:
    """Return an answer that any reader would like less."""
    words = entry.answer.split(" ")
    kind = random_numbers.randrange(4)
    if kind == 0:
        random_numbers.shuffle(words)
        return " ".join(words)
    if kind == 1:
        start = random_numbers.randrange(max(1, len(words) - 3))
        return " ".join(words[: start + 3] + words[start : start + 3] * 6)
    other = random_numbers.choice(others)
    if kind == 2:
        return " ".join(words[: max(2, len(words) // 4)]) + " " + other.answer + " " + other.answer
    half = other.answer.split(" ")
    random_numbers.shuffle(half)
    return entry.answer + " " + " ".join(half)


def write_conversations(folder: Path) -> None:
    """Write ``conversations/``, ``preferences/`` and ``prompts/``, each with a file to train on and one held out."""
    random_numbers = random.Random(11)
    known = entries()
    conversations: dict[str, list[dict[str, object]]] = {"train": [], "held-out": []}
    pairs: dict[str, list[dict[str, object]]] = {"train": [], "held-out": []}
    prompts: dict[str, list[dict[str, object]]] = {"train": [], "held-out": []}
    for position, entry in enumerate(known):
        part = "held-out" if position % HELD_OUT_EVERY == 0 else "train"
        for question in random_numbers.sample(QUESTIONS, 2):
            asked = question.format(term=entry.term)
            turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": entry.answer}]
            conversations[part].append({"messages": turns})
        for _ in range(2):
            pair = {"prompt": _question(entry, random_numbers), "chosen": entry.answer}
            pairs[part].append({**pair, "rejected": _worse(entry, known, random_numbers)})
        prompts[part].append({"prompt": _question(entry, random_numbers)})
    for name, parts in (("conversations", conversations), ("preferences", pairs), ("prompts", prompts)):
        for part, rows in parts.items():
            random_numbers.shuffle(rows)
            target = folder / name / f"{part}.jsonl"
            target.parent.mkdir(parents=True, exist_ok=True)
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            target.write_text("".join(lines), encoding="utf-8")
