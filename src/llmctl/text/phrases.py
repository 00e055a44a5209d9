"""Count phrases of a list in documents: all of them in one pass, whatever the length of the list (Aho–Corasick).

Letters match whatever their case. A phrase that begins or ends with a letter of a script with spaces matches only at
the edge of a word; in scripts without spaces a phrase matches anywhere. One space in a phrase stands for any white
space.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmctl.text import unicode
from llmctl.text.buffers import frozen
from llmctl.text.compile import inline_kernel, kernel
from llmctl.text.unicode import MARK, NO_SPACES, SPACE, WORD, decode

_OPEN_START, _OPEN_END = 1, 2  # the phrase may begin (end) in the middle of a word


@dataclass(frozen=True)
class Automaton:
    """A list of phrases, compiled.

    Attributes:
        alphabet: int32 of shape [0x110000]: number of each code point that occurs in a phrase, 0 for all others.
        step: int32 of shape [states, symbols].
        longest: int32 of shape [states]: number of the longest phrase that ends here + 1, 0 for none.
        shorter: int32 of shape [states]: the state of the next shorter phrase that ends here too, 0 for none.
        lengths, edges: int32 of shape [phrases]: length in characters, and where a word may go on.
    """

    alphabet: np.ndarray
    step: np.ndarray
    longest: np.ndarray
    shorter: np.ndarray
    lengths: np.ndarray
    edges: np.ndarray


def compile_phrases(phrases: Sequence[str]) -> Automaton:
    """Build the automaton of a list; equal phrases count once."""
    lower, classes = unicode.lower(), unicode.classes()
    folded = sorted({tuple(int(lower[ord(char)]) for char in " ".join(phrase.split())) for phrase in phrases} - {()})
    alphabet = np.zeros(unicode.TABLE_SIZE, np.int32)
    for number, point in enumerate(sorted({point for phrase in folded for point in phrase}), 1):
        alphabet[point] = number
    symbols = int(alphabet.max()) + 1
    children: list[dict[int, int]] = [{}]
    ends = [0]
    for number, phrase in enumerate(folded, 1):
        state = 0
        for point in phrase:
            symbol = int(alphabet[point])
            if symbol not in children[state]:
                children[state][symbol] = len(children)
                children.append({})
                ends.append(0)
            state = children[state][symbol]
        ends[state] = number
    step = np.zeros((len(children), symbols), np.int32)
    shorter = np.zeros(len(children), np.int32)
    longest = np.array(ends, np.int32)
    fail = np.zeros(len(children), np.int32)
    queue = deque([0])
    while queue:
        state = queue.popleft()
        for symbol in range(symbols):
            child = children[state].get(symbol)
            fallback = int(step[fail[state], symbol]) if state else 0
            if child is None:
                step[state, symbol] = fallback
                continue
            step[state, symbol] = child
            fail[child] = fallback
            shorter[child] = fallback if longest[fallback] else shorter[fallback]
            queue.append(child)

    def opens(point: int) -> bool:
        flags = int(classes[point])
        return not flags & WORD or bool(flags & NO_SPACES)

    edges = [_OPEN_START * opens(phrase[0]) | _OPEN_END * opens(phrase[-1]) for phrase in folded]
    lengths = np.array([len(phrase) for phrase in folded], np.int32)
    return Automaton(alphabet, step, longest, shorter, lengths, np.array(edges, np.int32))


@inline_kernel
def _joins(flags):
    return flags & (WORD | MARK) != 0 and flags & NO_SPACES == 0


@kernel
def _count(data, offsets, classes, lower, alphabet, step, longest, shorter, lengths, edges, longest_phrase, out):
    # What stood before each of the last characters: whether it is inside a word.
    size = longest_phrase + 2
    inside = np.zeros(size, np.bool_)
    for document in range(offsets.size - 1):
        position, end = offsets[document], offsets[document + 1]
        state = 0
        place = 0
        inside[0] = False
        space = False
        found = 0
        while position < end:
            point, width = decode(data, position)
            position += width
            flags = classes[point]
            if flags & SPACE:
                if space:
                    continue
                space = True
                point = np.uint32(32)
            else:
                space = False
            place += 1
            inside[place % size] = _joins(flags)
            state = step[state, alphabet[lower[point]]]
            at = state
            if longest[at] == 0:
                at = shorter[at]
            while at > 0:
                phrase = longest[at] - 1
                begins = edges[phrase] & _OPEN_START or not inside[(place - lengths[phrase]) % size]
                if begins:
                    closed = True
                    if not edges[phrase] & _OPEN_END and position < end:
                        following, _ = decode(data, position)
                        closed = not _joins(classes[following])
                    if closed:
                        found += 1
                        break  # a shorter phrase inside of this one is not counted again
                at = shorter[at]
        out[document] = found


def count_phrases(data: np.ndarray, offsets: np.ndarray, automaton: Automaton) -> np.ndarray:
    """Return how often phrases of the list occur in each document, int64 of shape [documents].

    Args:
        data, offsets: from `text_buffers`.
        automaton: from `compile_phrases`.
    """
    out = np.zeros(len(offsets) - 1, np.int64)
    if len(automaton.lengths):
        _count(
            frozen(data), frozen(offsets), unicode.classes(), unicode.lower(), automaton.alphabet, automaton.step,
            automaton.longest, automaton.shorter, automaton.lengths, automaton.edges, int(automaton.lengths.max()), out,
        )  # fmt: skip
    return out
