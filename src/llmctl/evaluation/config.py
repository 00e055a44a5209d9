"""What `llmctl eval` can set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from llmctl.config.schema import Opt
from llmctl.training.sampling_config import SamplingConfig


@dataclass
class EvalConfig(SamplingConfig):
    """How a model is measured: perplexity of texts, and answers to prompts."""

    seq_len: Annotated[int, Opt("Tokens of a window of text; 0 takes what the model reads, at most 2048.", min=0)] = 0
    max_documents: Annotated[int, Opt("Texts to measure; 0 takes all.", min=0)] = 0
    max_prompts: Annotated[int, Opt("Prompts to answer; 0 takes all.", min=0)] = 0
    check: Annotated[
        Literal["none", "number", "exact"],
        Opt("Compare answers with the record's: their last `number` (GSM8K's `####`), or the `exact` text."),
    ] = "none"
    answer_field: Annotated[str, Opt("Field of a record that holds the right answer.")] = "answer"
    pass_at: Annotated[int, Opt("Largest k of pass@k; needs as many --num-samples.", min=1)] = 1
    judge: Annotated[
        str,
        Opt("A command that reads JSON lines (prompt, first, second) and prints 1, 2 or 0 (a tie) for each."),
    ] = ""
