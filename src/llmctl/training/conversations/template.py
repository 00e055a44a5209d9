"""Render conversations to token ids: the one function behind training, evaluation, rollouts and chat.

The tokenizer's own chat template decides the text. What people wrote is kept apart from what the template wrote, so
that a special token in a user's text stays text, and so that exactly the assistant's tokens and the end of its turn
are learned. Answers are tokenised apart from the prompt, as they are when the model writes them.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmctl import console
from llmctl.errors import UserError
from llmctl.training.conversations.default_templates import default_template
from llmctl.training.conversations.records import ASSISTANT, USER, BadRecord, Conversation, Message
from llmctl.training.conversations.spans import Run, TextPlan, plan_text

CHAT_TOKENS = ("<|im_start|>", "<|im_end|>")
_PROBE = (Message(USER, "Q"), Message(ASSISTANT, "A"))


@dataclass(frozen=True)
class Rendered:
    """A conversation as token ids.

    Attributes:
        ids: token ids.
        trained: one flag per token; True for the assistant's tokens and the end of its turn.
    """

    ids: list[int]
    trained: list[bool]

    @property
    def num_trained(self) -> int:
        """Return the number of tokens that are learned."""
        return sum(self.trained)


class ChatTemplate:
    """A tokenizer with its chat template. Load it with `load_chat_template`.

    Attributes:
        text: the Jinja source.
        is_default: the tokenizer had none and got one of ours.
        end_of_turn_id: the token that ends an answer.
        stop_ids: the tokens at which generation stops.
        pad_id: the token that fills up rows; it is masked by length, never by its value.
    """

    def __init__(self, tokenizer: Any) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise UserError(
                "the tokenizer has no tokenizer.json", "convert it with transformers to a fast tokenizer first"
            )
        from tokenizers import Tokenizer

        self.tokenizer = tokenizer
        self._marked: dict[tuple[tuple[str, ...], bool], str] = {}
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.no_padding()
        self._backend.no_truncation()
        self._needs_bos = _adds_bos(tokenizer)
        self._prefixes_space = _prefixes_space(self._backend)
        self.is_default = not isinstance(tokenizer.chat_template, str) or not tokenizer.chat_template
        if self.is_default:
            tokenizer.chat_template = self._default()
        self.text: str = tokenizer.chat_template
        self._added = {token.content: (index, token) for index, token in tokenizer.added_tokens_decoder.items()}
        special = sorted((text for text, (_, token) in self._added.items() if token.special), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special)) or r"(?!)")
        self.generation_suffix = self._generation_suffix()
        self.end_of_turn_id = self._find_end_of_turn()
        eos = tokenizer.eos_token_id
        self.stop_ids: tuple[int, ...] = tuple(
            dict.fromkeys(index for index in (eos, self.end_of_turn_id) if index is not None)
        )
        self.pad_id: int = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else self.stop_ids[0]

    @property
    def sha256(self) -> str:
        """Return the hash of the template's source, as it stands in manifests."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def render(self, conversations: Sequence[Conversation], *, last_only: bool = False) -> list[Rendered | BadRecord]:
        """Render whole conversations for training.

        Args:
            conversations: each ends with an answer.
            last_only: learn the last answer only.

        Returns:
            One `Rendered` each, or the `BadRecord` that says why the template refuses it.
        """
        plans: list[TextPlan | BadRecord] = []
        for conversation in conversations:
            try:
                plans.append(self._plan(conversation, last_only=last_only))
            except BadRecord as failure:
                plans.append(failure)
        results = self._encode_good(plans)
        return [item if isinstance(item, BadRecord) else _without_tail(item) for item in results]

    def prompts(self, conversations: Sequence[Conversation]) -> list[list[int] | BadRecord]:
        """Render prompts up to where the assistant begins to write."""
        plans: list[TextPlan | BadRecord] = []
        for conversation in conversations:
            try:
                plans.append(self._plan(conversation, generation=True))
            except BadRecord as failure:
                plans.append(failure)
        return [item if isinstance(item, BadRecord) else item.ids for item in self._encode_good(plans)]

    def answer(self, text: str) -> list[int]:
        """Return the token ids of one answer with its end of turn, as they follow a rendered prompt."""
        ids: list[int] = self._encode_texts([text])[0][0] if text else []
        return [*ids, self.end_of_turn_id]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Return the text of token ids, with what is between tokens left as it is."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special)

    def save(self, folder: Path) -> None:
        """Write the tokenizer with the template into a model folder."""
        self.tokenizer.save_pretrained(str(folder), save_jinja_files=False)

    # -- text ---------------------------------------------------------------------------------------------------

    def _default(self) -> str:
        known = self.tokenizer.get_vocab()
        has_chat_tokens = all(token in known for token in CHAT_TOKENS)
        if not has_chat_tokens and self.tokenizer.eos_token is None:
            raise UserError(
                "the tokenizer has no chat template, no chat tokens and no end-of-text token",
                "set `eos_token` in tokenizer_config.json, or make the tokenizer with `llmctl tokenize`",
            )
        return default_template(has_chat_tokens, self._needs_bos)

    def text_of(self, conversation: Conversation, *, generation: bool = False) -> str:
        """Return the text that the template makes of a conversation.

        Raises:
            BadRecord: the template refuses it.
        """
        import jinja2

        tools = [dict(tool) for tool in conversation.tools] or None
        if tools and "tools" not in self.text:
            raise BadRecord("calls tools, and the chat template has no place for them")
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    [message.to_mapping() for message in conversation.messages],
                    tools=tools,
                    tokenize=False,
                    add_generation_prompt=generation,
                )
            )
        except (jinja2.TemplateError, TypeError, ValueError) as failure:
            raise BadRecord(f"the chat template refuses it: {failure}") from None

    def _plan(self, conversation: Conversation, *, last_only: bool = False, generation: bool = False) -> TextPlan:
        roles = tuple(message.role for message in conversation.messages)

        def render_marked(messages: tuple[Message, ...]) -> str:
            # The text with markers depends on the roles alone, and most conversations have the same.
            if conversation.tools:
                return self.text_of(Conversation(messages, conversation.tools), generation=generation)
            if (roles, generation) not in self._marked:
                self._marked[roles, generation] = self.text_of(Conversation(messages), generation=generation)
            return self._marked[roles, generation]

        return plan_text(
            conversation,
            self.text_of(conversation, generation=generation),
            render_marked=render_marked,
            special=self._special,
            suffix=self.generation_suffix,
            last_only=last_only,
        )

    def _generation_suffix(self) -> str:
        question = Conversation(_PROBE[:1])
        try:
            before = self.text_of(question)
            after = self.text_of(question, generation=True)
            whole = self.text_of(Conversation(_PROBE))
        except BadRecord as failure:
            raise UserError(
                f"the tokenizer's chat template does not work: {failure}", "mend `chat_template` in the model's folder"
            ) from None
        if not after.startswith(before):
            return ""
        if not whole.startswith(after):
            console.warning(
                "the chat template opens an answer differently when it is trained and when it is generated",
                "look at the samples of `llmctl sft --show 3`",
            )
        return after[len(before) :]

    def _find_end_of_turn(self) -> int:
        rendered = self._encode([self._plan(Conversation(_PROBE))])[0]
        trained = [index for index, flag in zip(rendered.ids, rendered.trained, strict=True) if flag]
        bos = self.tokenizer.bos_token_id
        if bos is not None and bos != self.tokenizer.eos_token_id and rendered.ids[:2] == [bos, bos]:
            raise UserError(
                "the chat template begins a conversation with two BOS tokens", "remove one from the template"
            )
        special = {index for index, token in self._added.values() if token.special}
        if trained and trained[-1] in special:
            return trained[-1]
        if self.tokenizer.eos_token_id is None:
            raise UserError(
                "the chat template does not end an answer with a special token, and the tokenizer has no eos_token",
                "set `eos_token` in tokenizer_config.json",
            )
        return int(self.tokenizer.eos_token_id)

    # -- tokens -------------------------------------------------------------------------------------------------

    def _encode_good(self, plans: Sequence[TextPlan | BadRecord]) -> list[Rendered | BadRecord]:
        if self._prefixes_space:
            results: list[Rendered | BadRecord] = []
            for plan in plans:
                try:
                    results.append(plan if isinstance(plan, BadRecord) else self._encode_whole(plan))
                except BadRecord as failure:
                    results.append(failure)
            return results
        encoded = iter(self._encode([plan for plan in plans if not isinstance(plan, BadRecord)]))
        return [plan if isinstance(plan, BadRecord) else next(encoded) for plan in plans]

    def _encode(self, plans: Sequence[TextPlan]) -> list[Rendered]:
        if self._prefixes_space:
            return [self._encode_whole(plan) for plan in plans]
        for plan in plans:
            self._mark_stripped(plan.runs)
        runs = [run for plan in plans for run in plan.runs if run.special is None]
        encoded = iter(self._encode_texts([self._trimmed(run) for run in runs]))
        results = []
        for plan in plans:
            ids: list[int] = []
            trained: list[bool] = []
            for run in plan.runs:
                if run.special is not None:
                    ids.append(self._added[run.special][0])
                    trained.append(run.is_trained(0))
                    continue
                tokens, offsets = next(encoded)
                shift = len(run.text) - len(run.text.lstrip()) if run.strip_left else 0
                ids += tokens
                trained += [run.is_trained(shift + start, shift + stop) for start, stop in offsets]
            results.append(self._ended(plan, ids, trained))
        return results

    def _mark_stripped(self, runs: Sequence[Run]) -> None:
        """Let special tokens take the white space beside them where the tokenizer says so (Phi-3)."""
        for left, right in itertools.pairwise(runs):
            if left.special is not None and right.special is None:
                right.strip_left = self._added[left.special][1].rstrip
            elif right.special is not None and left.special is None:
                left.strip_right = self._added[right.special][1].lstrip

    @staticmethod
    def _trimmed(run: Run) -> str:
        text = run.text.lstrip() if run.strip_left else run.text
        return text.rstrip() if run.strip_right else text

    def _ended(self, plan: TextPlan, ids: list[int], trained: list[bool]) -> Rendered:
        if plan.needs_end:
            return Rendered([*ids, int(self.tokenizer.eos_token_id)], [*trained, True])
        return Rendered(ids, trained)

    def _encode_texts(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        self._backend.encode_special_tokens = True
        encoded = self._backend.encode_batch(list(texts), add_special_tokens=False)
        return [(item.ids, item.offsets) for item in encoded]

    def _encode_whole(self, plan: TextPlan) -> Rendered:
        """Tokenise the whole text at once, where the tokenizer puts a space before each piece (SentencePiece)."""
        if plan.injected:
            raise BadRecord("its text holds a special token, which this tokenizer cannot keep as text")
        self._backend.encode_special_tokens = False
        encoded = self._backend.encode("".join(run.text for run in plan.runs), add_special_tokens=False)
        starts, position = [], 0
        for run in plan.runs:
            starts.append(position)
            position += len(run.text)
        trained = []
        current = 0
        for start, stop in encoded.offsets:
            last = max(start, stop - 1)
            while current + 1 < len(starts) and starts[current + 1] <= last:
                current += 1
            run = plan.runs[current]
            trained.append(run.is_trained(max(start - starts[current], 0), stop - starts[current]))
        return self._ended(plan, list(encoded.ids), trained)


def load_chat_template(folder: Path | str) -> ChatTemplate:
    """Load the tokenizer of a model folder with its chat template.

    Raises:
        UserError: no tokenizer there, or one that cannot be used.
    """
    from transformers import AutoTokenizer

    folder = Path(folder)
    if not (folder / "tokenizer.json").is_file() and not (folder / "tokenizer_config.json").is_file():
        raise UserError(
            f"{folder} holds no tokenizer", "give a model folder with tokenizer.json and tokenizer_config.json"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError) as failure:
        raise UserError(f"cannot load the tokenizer in {folder}: {str(failure).splitlines()[0]}") from None
    return ChatTemplate(tokenizer)


def _without_tail(rendered: Rendered) -> Rendered:
    """Cut off what the template writes after the last end of turn: nothing learns from it."""
    stop = len(rendered.ids)
    while stop and not rendered.trained[stop - 1]:
        stop -= 1
    return Rendered(rendered.ids[:stop], rendered.trained[:stop])


def _adds_bos(tokenizer: Any) -> bool:
    bos = tokenizer.bos_token_id
    return bos is not None and tokenizer("x")["input_ids"][:1] == [bos]


def _prefixes_space(backend: Any) -> bool:
    tokens = backend.encode("x", add_special_tokens=False).tokens
    return bool(tokens) and tokens[0].startswith(("▁", "Ġ"))
