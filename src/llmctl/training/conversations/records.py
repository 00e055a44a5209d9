"""The one shape that every conversation and every comparison is turned into."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SYSTEM, USER, ASSISTANT, TOOL = "system", "user", "assistant", "tool"
ROLES = (SYSTEM, USER, ASSISTANT, TOOL)


class BadRecord(ValueError):
    """A record that cannot be used; the message is the sentence told to the user."""


class UnwantedRecord(BadRecord):
    """A sound record that says itself that it should not be learned from; it counts as removed, not as invalid."""


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str

    def to_mapping(self) -> dict[str, str]:
        """Return the turn as chat templates expect it."""
        return {"role": self.role, "content": self.content}


@dataclass(frozen=True)
class Conversation:
    """Turns in order; for training the last one is the assistant's.

    Attributes:
        tools: JSON schemas of the functions that the assistant may call.
        notes: what was mended on reading, such as ``end marker as text removed``; counted, never silent.
    """

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def prompt(self) -> tuple[Message, ...]:
        """Return the turns before the last answer."""
        return self.messages[:-1]

    @property
    def answer(self) -> str:
        """Return the last turn's text."""
        return self.messages[-1].content


@dataclass(frozen=True)
class Comparison:
    """Answers to one prompt with a score each; a higher score is better and equal scores are a tie.

    Attributes:
        prompt: the turns before the answers.
        answers: two or more answers.
        scores: one number per answer; only their order counts.
    """

    prompt: tuple[Message, ...]
    answers: tuple[str, ...]
    scores: tuple[float, ...]
    notes: tuple[str, ...] = field(default=())

    def pairs(self) -> list[tuple[int, int]]:
        """Return (better, worse) positions of every pair that is not a tie."""
        order = range(len(self.answers))
        return [(i, j) for i in order for j in order if self.scores[i] > self.scores[j]]

    @property
    def num_ties(self) -> int:
        """Return the number of pairs with equal scores."""
        size = len(self.answers)
        return size * (size - 1) // 2 - len(self.pairs())
