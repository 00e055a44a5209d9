"""Answer prompts with a model: render, sample, decode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from llmctl import console
from llmctl.errors import UserError
from llmctl.model.generation import Generated, Sampling, generate
from llmctl.model.huggingface import find_model_folder, load_model
from llmctl.model.transformer import Transformer
from llmctl.training.conversations.records import BadRecord, Conversation
from llmctl.training.conversations.template import ChatTemplate, load_chat_template
from llmctl.training.sampling_config import SamplingConfig


@dataclass
class Responder:
    """A model with its tokenizer, ready to answer.

    Attributes:
        as_chat: prompts are rendered with the chat template; otherwise their text is continued.
    """

    model: Transformer
    template: ChatTemplate
    as_chat: bool
    config: SamplingConfig

    def encode(self, prompt: Conversation) -> list[int]:
        """Return the token ids of a prompt.

        Raises:
            UserError: the template refuses it, it is empty, or it leaves no room for an answer.
        """
        if self.as_chat:
            (ids,) = self.template.prompts([prompt])
            if isinstance(ids, BadRecord):
                raise UserError(f"the prompt cannot be used: {ids}", "give another prompt, or use --chat off")
        else:
            text = prompt.messages[-1].content
            ids = list(self.template.tokenizer(text)["input_ids"])
            if not ids:
                raise UserError("the prompt is empty", "give some text")
        limit = self.model.config.max_seq_len
        if limit and len(ids) >= limit:
            raise UserError(
                f"the prompt has {len(ids):,} tokens, and the model reads {limit:,}", "give a shorter prompt"
            )
        return ids

    def has_room(self, prompt: Conversation) -> bool:
        """Tell whether a prompt leaves half of what the model reads, or `max_new_tokens`, for the answer."""
        limit = self.model.config.max_seq_len
        (ids,) = self.template.prompts([prompt])
        if not limit or isinstance(ids, BadRecord):
            return True
        return len(ids) + min(self.config.max_new_tokens, limit // 2) <= limit

    def answer(
        self, prompts: Sequence[list[int]], *, on_token: Callable[[int, int], None] | None = None
    ) -> list[Generated]:
        """Sample `num_samples` answers to each prompt; those of one prompt stand together."""
        config = self.config
        many = [prompt for prompt in prompts for _ in range(config.num_samples)]
        longest = max((len(prompt) for prompt in many), default=0)
        limit = self.model.config.max_seq_len
        new_tokens = min(config.max_new_tokens, limit - longest) if limit else config.max_new_tokens
        if new_tokens < config.max_new_tokens:
            console.info(f"answers end after {new_tokens:,} tokens: the model reads {limit:,}")
        return generate(
            self.model,
            many,
            max_new_tokens=new_tokens,
            stop_ids=self.template.stop_ids if self.as_chat else self._text_stops(),
            sampling=Sampling(config.temperature, config.top_p, config.top_k),
            seed=config.seed,
            batch_size=config.batch_size,
            on_token=on_token,
        )

    def text(self, answer: Generated) -> str:
        """Return the text of an answer, without the token that ended it."""
        return self.template.decode(answer.ids)

    def _text_stops(self) -> tuple[int, ...]:
        eos = self.template.tokenizer.eos_token_id
        return () if eos is None else (int(eos),)


def load_responder(folder: Path | str, config: SamplingConfig) -> Responder:
    """Load a model folder or a finished run for answering.

    Raises:
        UserError: no model or tokenizer there, or a tokenizer with more tokens than the model has rows.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("`--device cuda`, and torch sees no GPU", "use --device cpu")
    device = "cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu"
    folder = find_model_folder(folder)
    template = load_chat_template(folder)
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    model = load_model(folder, dtype=dtype, device=device)
    check_vocabulary(template, model.config.vocab_size, folder)
    as_chat = config.chat == "on" or (config.chat == "auto" and not template.is_default)
    if config.chat == "auto" and not as_chat:
        console.info(f"{folder} has no chat template: prompts are continued as text (--chat on renders them)")
    return Responder(model.eval(), template, as_chat, config)


def check_vocabulary(template: ChatTemplate, vocab_size: int, folder: Any) -> None:
    """Refuse a tokenizer whose ids do not fit the model.

    Raises:
        UserError: says both sizes.
    """
    highest = max(template.tokenizer.get_vocab().values(), default=-1)
    if highest >= vocab_size:
        raise UserError(
            f"the tokenizer in {folder} has ids up to {highest:,}, and the model has {vocab_size:,} rows",
            "they belong to different models: give the folder that holds both",
        )
