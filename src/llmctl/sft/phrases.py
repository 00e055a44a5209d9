"""Find template phrases in answers: what a model says because another model said it ("As an AI language model …")."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from llmctl.errors import UserError

BUILTIN = (
    r"as an ai(?: language)? (?:model|assistant)",
    r"i(?:'| a)m (?:just )?an ai\b",
    r"i am a large language model",
    r"as a (?:large )?language model",
    r"i do(?:n't| not) have personal (?:opinions|beliefs|experiences|preferences|feelings)",
    r"my (?:knowledge|training data) (?:cut-?off|only goes)",
    r"it(?:'| i)s important to (?:note|remember) that",
    r"i hope this helps",
    r"certainly! here(?:'s| is| are)",
    r"作为(?:一个|一名)?(?:人工智能|ai|AI)(?:语言)?(?:模型|助手|助理)?",
    r"作为(?:一个|一名)?(?:大型)?语言模型",
    r"我是(?:一个)?(?:人工智能|ai|AI)(?:助手|模型|语言模型)",
    r"我没有(?:个人|自己的)(?:观点|情感|经历|偏好|意见)",
    r"希望(?:这|以上|我的回答)?(?:能|对您|对你)?(?:有所|有)?帮助",
)


def compile_phrases(entries: Sequence[str]) -> re.Pattern[str] | None:
    """Return a pattern that finds any of the phrases, or None for an empty list.

    Args:
        entries: ``builtin``, paths of files with a phrase a line, or phrases themselves (matched as they stand).

    Raises:
        UserError: a file that cannot be read.
    """
    patterns: list[str] = []
    for entry in entries:
        if entry == "builtin":
            patterns += BUILTIN
        elif Path(entry).is_file():
            try:
                lines = Path(entry).read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as failure:
                raise UserError(f"cannot read the phrases in {entry}: {failure}", "give a text file in UTF-8") from None
            patterns += [re.escape(line.strip()) for line in lines if line.strip()]
        elif entry.endswith(".txt") or "/" in entry:
            raise UserError(f"no such file of phrases: {entry}", "give a text file with a phrase a line")
        elif entry:
            patterns.append(re.escape(entry))
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.IGNORECASE) if patterns else None
