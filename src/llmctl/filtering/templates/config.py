"""What counts as template content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from llmctl.config.schema import Opt


@dataclass
class TemplateConfig:
    """What a family of documents with one skeleton is."""

    min_family: Annotated[int, Opt("Fewest documents of a family.", min=3)] = 10
    max_slot_share: Annotated[
        float, Opt("Largest share of a document's words that stand in slots, outside the skeleton.", min=0.05, max=0.9)
    ] = 0.5
    min_skeleton: Annotated[int, Opt("Fewest words (characters in Chinese) of a skeleton.", min=4)] = 8
