"""What a type of sensitive entity is, and the pieces that patterns are made of.

Patterns are RE2's: they run in time linear in the text, whatever the text is, and know no look-around. What stands next
to a match is therefore checked afterwards (`Entity.edges`), and so is what no pattern can say (`Entity.check`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

# What may stand between a label and its value: "Passport No.: ", "护照号码为".
_CONNECTOR = (
    r"(?:[ \t:：=#.,№º°()（）\[\]\"'`|*/_-]|"
    r"(?i:number|nummer|n[uú]mero|numéro|num|no|nr|n|is|was|are|code|id|of|de|du|der|the)\b|号码|号|為|为|是|码)"
)
CONNECT = _CONNECTOR + "{0,8}"


# Seven digits, with at most two separators between any two: what numbers of persons, accounts and telephones have.
LONG_NUMBER = r"[0-9](?:[ .,\-/:()]{0,2}[0-9]){6,}"
# What `CONNECT` and the longest value can take, in bytes.
_LABEL_REACH = 240


@dataclass(frozen=True)
class Pattern:
    """A pattern with the trigger that finds the places where it is worth a try.

    Attributes:
        regex: RE2; a group, if there is one, is the value, else the whole match is.
        trigger: a cheap pattern that matches wherever `regex` does.
        before, after: how many bytes before and behind the trigger's match `regex` may cover.
        kind: triggers of one kind are looked for in one pass: ``words`` (they count nothing), ``forms``, ``numbers``.
            Counters of different kinds in one automaton would multiply its states.
    """

    regex: str
    trigger: str
    before: int
    after: int
    kind: Literal["words", "forms", "numbers"]


def number(regex: str, trigger: str = LONG_NUMBER) -> Pattern:
    """Return a pattern for a value with at least seven digits close together; its trigger may be narrower."""
    return Pattern(regex, trigger, 20, 20, "numbers")


def near(trigger: str, regex: str, before: int = 0, after: int = 0) -> Pattern:
    """Return a pattern that is tried around a trigger."""
    return Pattern(regex, trigger, before, after, "forms" if "{" in trigger else "words")


def labelled(labels: str, value: str) -> Pattern:
    """Return a pattern for a value that stands after one of some labels; case of the labels does not matter.

    Args:
        labels: alternatives, such as ``passport|护照``.
        value: the pattern of the value, without capturing groups.
    """
    return Pattern(rf"(?i:{labels}){CONNECT}({value})", f"(?i:{labels})", 0, _LABEL_REACH, "words")


@dataclass(frozen=True)
class Entity:
    """One type of sensitive entity.

    Attributes:
        name: as in ``--pii-types`` and the statistics; its capitals are the placeholder.
        what: one sentence for the reference.
        patterns: how it is written.
        check: tells from the value whether it is one (`True`, `False`), or how many of its first characters are.
        checked: what `check` verifies and where it is defined, for the reference.
        confidence: ``high`` (a check digit, a prefix or a form that nothing else has), ``medium`` (a form or a label
            that other things may have), ``low`` (words around it suggest it; expect false alarms).
        edges: what must not stand beside the value. ``word``: a letter or digit of ASCII, or ``_``. ``digits``: these,
            and a digit beyond a point, comma, slash, colon or hyphen, which makes it part of a longer number.
            ``none``: nothing.
        until: pattern of what closes the entity, looked for in the 16 KiB behind it; its group must be ``END``.
    """

    name: str
    what: str
    patterns: tuple[Pattern, ...]
    check: Callable[[str], bool | int] | None = None
    checked: str = ""
    confidence: Literal["high", "medium", "low"] = "high"
    edges: Literal["word", "digits", "none"] = "word"
    until: str = ""

    @property
    def placeholder(self) -> str:
        """Return what stands between the angle brackets in a masked text."""
        return self.name.upper()
