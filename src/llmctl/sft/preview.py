"""Show rendered conversations with the learned tokens marked: what the model sees is what a person should look at."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from llmctl import console
from llmctl.training.conversations.template import ChatTemplate, Rendered

_GREEN, _RESET = "\x1b[32m", "\x1b[0m"
_OPEN, _CLOSE = "⟦", "⟧"


def marked(template: ChatTemplate, row: Rendered, *, colour: bool) -> str:
    """Return the text of a row with the learned part green, or between ⟦ and ⟧."""
    before, after = (_GREEN, _RESET) if colour else (_OPEN, _CLOSE)
    parts = []
    pairs = zip(row.ids, row.trained, strict=True)
    for trained, group in groupby(pairs, key=lambda pair: pair[1]):
        text = template.decode([token for token, _ in group], skip_special=False)
        parts.append(f"{before}{text}{after}" if trained else text)
    return "".join(parts)


def show(template: ChatTemplate, rows: Sequence[Rendered], count: int) -> None:
    """Print the first rows on stderr."""
    for number, row in enumerate(rows[:count], 1):
        console.info(f"--- conversation {number}: {len(row.ids):,} tokens, {row.num_trained:,} learned (marked)")
        console.info(marked(template, row, colour=console.is_terminal()))
