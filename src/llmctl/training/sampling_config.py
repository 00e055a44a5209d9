"""How answers are sampled: shared by `llmctl generate`, rollouts and the samples that runs keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from llmctl.config.schema import Opt


@dataclass
class SamplingConfig:
    """How a model answers prompts. The defaults sample from its full distribution."""

    max_new_tokens: Annotated[int, Opt("Longest answer, in tokens.", min=1)] = 256
    temperature: Annotated[float, Opt("Divides the logits; 0 takes the likeliest token.", min=0)] = 1.0
    top_p: Annotated[float, Opt("Keep the likeliest tokens up to this probability; 1 keeps all.", min=0, max=1)] = 1.0
    top_k: Annotated[int, Opt("Keep this many likeliest tokens; 0 keeps all.", min=0)] = 0
    seed: Annotated[int, Opt("Seed of the random numbers; the same seed gives the same answers.", min=0)] = 0
    num_samples: Annotated[int, Opt("Answers to each prompt.", min=1)] = 1
    batch_size: Annotated[int, Opt("Answers written at once.", min=1)] = 32
    chat: Annotated[
        Literal["auto", "on", "off"],
        Opt("`on` renders prompts with the chat template, `off` continues them as text, `auto` asks the model."),
    ] = "auto"
    device: Annotated[Literal["auto", "cpu", "cuda"], Opt("Where the model lives.")] = "auto"
    precision: Annotated[Literal["fp32", "bf16"], Opt("Type of the weights while sampling.")] = "fp32"
