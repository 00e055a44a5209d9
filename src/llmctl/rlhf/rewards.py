"""What scores answers: a reward model, any Python function, or any command."""

from __future__ import annotations

import importlib.util
import inspect
import json
import math
import shlex
import subprocess
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from llmctl.errors import RunFailed, UserError, unknown_name
from llmctl.model.huggingface import find_model_folder
from llmctl.model.scalar_head import ScalarModel, load_scalar_model, score_last
from llmctl.rlhf.padding import pad_rows
from llmctl.training.conversations.records import ASSISTANT, BadRecord, Conversation, Message
from llmctl.training.conversations.template import ChatTemplate, load_chat_template
from llmctl.training.engines.common import autocast

SCORING_BATCH = 16
COMMAND_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Answer:
    """An answer to be scored.

    Attributes:
        messages: the turns of the prompt.
        prompt_ids, response_ids: as the policy reads and wrote them, with the stop token if one came.
        text: the answer's text.
        stopped: it ended by itself.
        record: the record of the prompt, as JSON.
    """

    messages: tuple[Message, ...]
    prompt_ids: list[int]
    response_ids: list[int]
    text: str
    stopped: bool
    record: str = "{}"


class Reward(Protocol):
    """Scores answers; higher is better."""

    def __call__(self, answers: Sequence[Answer]) -> list[float]:
        """Return one finite number per answer."""
        ...


class RewardFunction:
    """A function ``NAME(prompts: list[str], responses: list[str]) -> list[float]`` in a Python file of the user's.

    A third parameter gets the prompts' records (list[dict]), for rewards that check against a known answer.
    """

    def __init__(self, file: Path, name: str) -> None:
        self.named = f"{file.name}:{name}"
        self._function = _load_function(file, name)
        self._wants_records = _num_parameters(self._function) >= 3

    def __call__(self, answers: Sequence[Answer]) -> list[float]:
        """Call the function.

        Raises:
            UserError: it failed, or gave something other than a finite number per answer.
        """
        prompts = [answer.messages[-1].content for answer in answers]
        responses = [answer.text for answer in answers]
        arguments: list[Any] = [prompts, responses]
        if self._wants_records:
            arguments.append([json.loads(answer.record) for answer in answers])
        try:
            given = self._function(*arguments)
            scores = [float(value) for value in given]
        except Exception as failure:
            frame = traceback.extract_tb(failure.__traceback__)[-1]
            raise UserError(
                f"the reward function {self.named} failed: {type(failure).__name__}: {failure}",
                f"see line {frame.lineno} of {frame.filename}",
            ) from None
        return checked_scores(scores, responses, f"the reward function {self.named}")


class RewardCommand:
    """A command that reads a JSON line per answer (`prompt`, `response`, `record`) and prints one number a line."""

    def __init__(self, command: str) -> None:
        self.command = command
        try:
            self._words = shlex.split(command)
        except ValueError as failure:
            raise UserError(f"--reward-command cannot be split into words: {failure}", "close its quotes") from None

    def __call__(self, answers: Sequence[Answer]) -> list[float]:
        """Run the command once over the answers.

        Raises:
            UserError: it failed, or printed something other than a finite number per answer.
        """
        lines = [
            {
                "prompt": answer.messages[-1].content,
                "response": answer.text,
                "record": json.loads(answer.record),
            }
            for answer in answers
        ]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        try:
            done = subprocess.run(
                self._words, input=text.encode(), capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False
            )
        except OSError as failure:
            raise UserError(
                f"the reward command cannot be started: {failure}", "give a command that is on the PATH, or its path"
            ) from None
        except subprocess.TimeoutExpired:
            raise UserError(
                f"the reward command has run for {COMMAND_TIMEOUT_S:.0f} s over {len(answers)} answers",
                "make it faster, or lower --global-batch-size",
            ) from None
        if done.returncode:
            told = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise UserError(
                f"the reward command ended with status {done.returncode}" + (f": {told[-1]}" if told else ""),
                f"try it by hand: {self.command}",
            )
        printed = done.stdout.decode("utf-8", "replace").split()
        try:
            scores = [float(word) for word in printed]
        except ValueError as failure:
            raise UserError(
                f"the reward command printed something other than numbers: {failure}", "print one number a line"
            ) from None
        return checked_scores(scores, [answer.text for answer in answers], "the reward command")


def checked_scores(scores: list[float], responses: Sequence[str], what: str) -> list[float]:
    """Return the scores.

    Raises:
        UserError: there is not one finite number per response.
    """
    if len(scores) != len(responses):
        raise UserError(f"{what} gave {len(scores)} scores for {len(responses)} responses", "give one per response")
    bad = next((position for position, score in enumerate(scores) if not math.isfinite(score)), None)
    if bad is not None:
        raise UserError(f"{what} gave {scores[bad]} for the response {responses[bad][:80]!r}", "give finite numbers")
    return scores


def _num_parameters(function: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in kinds and parameter.default is parameter.empty for parameter in parameters)


def split_function_name(named: str) -> tuple[Path, str]:
    """Return file and name of ``FILE.py:NAME``.

    Raises:
        UserError: it is not written so, or there is no such file.
    """
    path, _, name = named.rpartition(":")
    if not path or not name.isidentifier():
        raise UserError(f"`--reward-fn {named}` is not FILE.py:NAME", "write e.g. --reward-fn reward.py:score")
    file = Path(path)
    if not file.is_file():
        raise UserError(f"the file of the reward function does not exist: {file}", "give FILE.py:NAME")
    return file, name


def _load_function(file: Path, name: str) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location(f"llmctl_reward_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} is not a Python file", "give FILE.py:NAME")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as failure:
        raise UserError(f"{file} cannot be loaded: {type(failure).__name__}: {failure}", "run it with Python") from None
    function = getattr(module, name, None)
    if not callable(function):
        raise unknown_name(f"function in {file}", name, [key for key in vars(module) if callable(vars(module)[key])])
    return function


class RewardModel:
    """A model that `llmctl rlhf reward` trained, of any size and with any tokenizer."""

    def __init__(self, folder: Path, policy: ChatTemplate, device: torch.device, precision: str) -> None:
        self.folder = folder = find_model_folder(folder)
        self.model: ScalarModel = load_scalar_model(folder, device=device).eval().requires_grad_(False)
        self.template = load_chat_template(folder)
        self.device, self.precision = device, precision
        # With the same tokens and template the policy's own ids are scored; nothing is decoded and encoded again.
        self.shares_tokens = same_tokens(self.template, policy)

    @torch.no_grad()
    def __call__(self, answers: Sequence[Answer]) -> list[float]:
        """Return the number at the last token of each answer."""
        rows = self._rows(answers)
        limit = self.model.config.max_seq_len
        too_long = next((row for row in rows if limit and len(row) > limit), None)
        if too_long is not None:
            raise UserError(
                f"an answer with its prompt has {len(too_long):,} tokens, and the reward model reads {limit:,}",
                "lower --seq-len or --max-new-tokens",
            )
        order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))
        scores = [0.0] * len(rows)
        for start in range(0, len(order), SCORING_BATCH):
            part = order[start : start + SCORING_BATCH]
            ids = pad_rows([rows[row] for row in part], self.template.pad_id).to(self.device)
            lengths = torch.tensor([len(rows[row]) for row in part], device=self.device)
            with autocast(self.precision, self.device):
                found = score_last(self.model, ids, lengths).tolist()
            for row, score in zip(part, found, strict=True):
                scores[row] = float(score)
        if not all(map(math.isfinite, scores)):
            raise RunFailed("the reward model gave a score that is not a number", "train it again with a lower --lr")
        return scores

    def _rows(self, answers: Sequence[Answer]) -> list[list[int]]:
        if self.shares_tokens:
            return [[*answer.prompt_ids, *answer.response_ids] for answer in answers]
        whole = [Conversation((*answer.messages, Message(ASSISTANT, answer.text))) for answer in answers]
        rendered = self.template.render(whole, last_only=True)
        refused = next((row for row in rendered if isinstance(row, BadRecord)), None)
        if refused is not None:
            raise UserError(f"the reward model's chat template does not take an answer: {refused}")
        return [row.ids for row in rendered if not isinstance(row, BadRecord)]


def same_tokens(first: ChatTemplate, second: ChatTemplate) -> bool:
    """Tell whether two models read the same ids for the same conversation."""
    return (
        first.text == second.text
        and first.tokenizer.get_vocab() == second.tokenizer.get_vocab()
        and json.loads(first.tokenizer.backend_tokenizer.to_str())["model"]
        == json.loads(second.tokenizer.backend_tokenizer.to_str())["model"]
    )
