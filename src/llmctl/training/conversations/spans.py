"""Tell apart, in the text that a chat template made, what the template wrote and what people wrote."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from llmctl.training.conversations.records import ASSISTANT, BadRecord, Conversation, Message

# Private-use characters: no template looks for them, and `trim` leaves them alone.
_OPEN, _CLOSE = "\ue0f0", "\ue0f1"


@dataclass
class Run:
    """A stretch of text that is tokenised by itself, or one special token.

    Attributes:
        special: the special token; then `text` is the same string.
        learned: (start, stop) character ranges of `text` that are learned.
        strip_left, strip_right: the neighbouring special token takes the white space on this side.
    """

    text: str
    special: str | None = None
    learned: list[tuple[int, int]] = field(default_factory=list)
    strip_left: bool = False
    strip_right: bool = False

    def is_trained(self, start: int, stop: int | None = None) -> bool:
        """Tell whether a token over these characters is learned: it must touch a learned range."""
        stop = start + 1 if stop is None else max(stop, start + 1)
        return any(start < end and begin < stop for begin, end in self.learned)


@dataclass
class TextPlan:
    """How to tokenise one rendered conversation.

    Attributes:
        runs: in order; their texts together are the rendered text.
        injected: someone's text holds a special token, which must stay text.
        needs_end: the template does not end the last answer, so the end-of-text token is added.
    """

    runs: list[Run]
    injected: bool
    needs_end: bool


def plan_text(
    conversation: Conversation,
    text: str,
    *,
    render_marked: Callable[[tuple[Message, ...]], str],
    special: re.Pattern[str],
    suffix: str,
    last_only: bool,
) -> TextPlan:
    """Cut the rendered text of a conversation into runs.

    Args:
        text: what the template made of it.
        render_marked: makes the text of the same turns with a marker in place of each turn's text.
        special: matches any special token.
        suffix: what the template writes when the assistant is to answer.
        last_only: learn the last answer only.

    Raises:
        BadRecord: the template rewrites what people wrote.
    """
    messages = conversation.messages
    contents = _content_spans(messages, text, render_marked)
    template_special = [match.span() for match in special.finditer(text) if not _touches(match.span(), contents)]
    # finditer does not overlap: a special token written by a person may hide one of the template's that begins in it.
    injected = any(special.search(text, start, stop) for start, stop in contents if start < stop)
    if injected:
        template_special = _special_outside(text, contents, special)
    learned, needs_end = _learned(messages, text, contents, template_special, suffix, last_only)
    cuts = {position for span in template_special for position in span} | {start for start, _ in learned}
    bounds = sorted({0, len(text), *cuts})
    spans = set(template_special)
    runs = [
        Run(
            text[start:stop],
            special=text[start:stop] if (start, stop) in spans else None,
            learned=[
                (max(begin, start) - start, min(end, stop) - start)
                for begin, end in learned
                if begin < stop and start < end
            ],
        )
        for start, stop in itertools.pairwise(bounds)
    ]
    return TextPlan(runs, injected, needs_end)


def _special_outside(text: str, contents: Sequence[tuple[int, int]], special: re.Pattern[str]) -> list[tuple[int, int]]:
    found = []
    position = 0
    for start, stop in [*contents, (len(text), len(text))]:
        found += [match.span() for match in special.finditer(text, position, start)]
        position = stop
    return found


def _touches(span: tuple[int, int], others: Sequence[tuple[int, int]]) -> bool:
    return any(start < span[1] and span[0] < stop for start, stop in others)


def _content_spans(
    messages: tuple[Message, ...], text: str, render_marked: Callable[[tuple[Message, ...]], str]
) -> list[tuple[int, int]]:
    """Return where the text of each turn stands, by rendering once more with markers in its place."""
    if any(_OPEN in message.content for message in messages):
        raise BadRecord("its text holds a private-use character that llmctl needs (U+E0F0)")
    marked = render_marked(tuple(Message(message.role, f"{_OPEN}{i}{_CLOSE}") for i, message in enumerate(messages)))
    pieces = re.split(f"{_OPEN}(\\d+){_CLOSE}", marked)
    order = [int(index) for index in pieces[1::2]]
    if order == list(range(len(messages))):
        spans = _match_pieces(messages, text, pieces[::2])
        if spans is not None:
            return spans
    # The template looks into the text (reasoning tags, for example): find each turn in order.
    spans, position = [], 0
    for number, message in enumerate(messages, 1):
        content = message.content.strip()
        start = text.find(content, position)
        if start < 0:
            raise BadRecord(f"the chat template rewrites or drops a text: turn {number}")
        position = start + len(content)
        spans.append((start, position))
    return spans


def _match_pieces(messages: tuple[Message, ...], text: str, pieces: Sequence[str]) -> list[tuple[int, int]] | None:
    if not text.startswith(pieces[0]):
        return None
    position = len(pieces[0])
    spans = []
    for message, piece in zip(messages, pieces[1:], strict=True):
        for content in (message.content, message.content.strip(), message.content.rstrip(), message.content.lstrip()):
            if text.startswith(content + piece, position):
                spans.append((position, position + len(content)))
                position += len(content) + len(piece)
                break
        else:
            return None
    return spans if position == len(text) else None


def _learned(
    messages: tuple[Message, ...],
    text: str,
    contents: Sequence[tuple[int, int]],
    special: Sequence[tuple[int, int]],
    suffix: str,
    last_only: bool,
) -> tuple[list[tuple[int, int]], bool]:
    """Return the character ranges that are learned, and whether the last answer lacks an end of turn."""
    learned = []
    needs_end = False
    for position, (message, (start, stop)) in enumerate(zip(messages, contents, strict=True)):
        is_last = position == len(messages) - 1
        if message.role != ASSISTANT or (last_only and not is_last):
            continue
        # What the template writes between its invitation to answer and the answer is the model's to write.
        before = text[contents[position - 1][1] if position else 0 : start]
        if suffix and (found := before.rfind(suffix)) >= 0:
            start -= len(before) - found - len(suffix)
        end = next((span for span in special if span[0] >= stop), None)
        if end is not None and not text[stop : end[0]].strip():
            learned.append((start, end[1]))
        else:
            learned.append((start, stop))
            needs_end = needs_end or is_last
    return learned, needs_end
