"""Sample from a model: batched, cached, ragged prompts, the same text for the same seed whatever the batch.

Every sample draws its random numbers from its own counter-based stream (seed, sample id), one per token, so that
neither batch mates nor the number of processes change what it says, and a resumed run needs no generator state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from llmctl.model.cache import KVCache
from llmctl.model.transformer import Transformer


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen. The defaults sample from the model's full distribution, and nothing else is hidden.

    Attributes:
        temperature: divides the logits; 0 takes the likeliest token.
        top_p: keep the fewest likeliest tokens whose probabilities reach this; 1 keeps all.
        top_k: keep this many likeliest tokens; 0 keeps all.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


@dataclass
class Generated:
    """One sample.

    Attributes:
        ids: the new tokens, with the stop token if one came.
        logprobs: of each new token under softmax(logits / temperature), before top-k and top-p.
        stopped: a stop token ended it, and not the limit.
    """

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stopped: bool = False


def uniform_numbers(seed: int, sample_id: int, count: int) -> np.ndarray:
    """Return the random numbers in [0, 1) of one sample, float64 [count]."""
    key = np.array([seed & 0xFFFFFFFFFFFFFFFF, sample_id & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).random(count)


def filter_logits(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return logits [rows, vocabulary] with the tokens that `sampling` leaves out at −inf."""
    if sampling.top_k and sampling.top_k < logits.shape[-1]:
        least = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if sampling.top_p < 1.0:
        ordered, order = logits.sort(dim=-1, descending=True)
        probabilities = ordered.softmax(-1)
        # A token stays if those before it do not reach top_p yet: the likeliest always stays.
        dropped = probabilities.cumsum(-1) - probabilities >= sampling.top_p
        logits = logits.masked_fill(torch.zeros_like(dropped).scatter(1, order, dropped), -torch.inf)
    return logits


def choose_tokens(
    logits: torch.Tensor, sampling: Sampling, uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose one token per row by inverting the cumulative distribution.

    Args:
        logits: [rows, vocabulary].
        uniforms: float64 [rows] in [0, 1).

    Returns:
        ids int64 [rows], and their log-probabilities under softmax(logits / temperature), float32 [rows].
    """
    wide = logits.float() if logits.dtype != torch.float64 else logits
    if sampling.temperature not in (0, 1):
        wide = wide / sampling.temperature
    normaliser = wide.logsumexp(-1, keepdim=True)
    if sampling.temperature == 0:
        ids = wide.argmax(-1)
    else:
        # Summed in float64: float32 sums over a large vocabulary would be off by more than small probabilities.
        # They need not end at one: what is drawn is scaled to the last sum.
        cumulative = (filter_logits(wide, sampling) - normaliser).exp_().double().cumsum_(-1)
        wanted = uniforms.to(cumulative.device).unsqueeze(1) * cumulative[:, -1:]
        ids = torch.searchsorted(cumulative, wanted, right=True).squeeze(1).clamp_max(logits.shape[-1] - 1)
    return ids, (wide.gather(-1, ids.unsqueeze(-1)) - normaliser).squeeze(-1)


@torch.no_grad()
def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop_ids: Sequence[int],
    sampling: Sampling | None = None,
    seed: int = 0,
    sample_ids: Sequence[int] | None = None,
    batch_size: int = 32,
    on_token: Callable[[int, int], None] | None = None,
) -> list[Generated]:
    """Continue each prompt until a stop token or the limit.

    Args:
        model: the whole model, on one device.
        prompts: token ids, one or more each.
        max_new_tokens: the limit for each sample.
        stop_ids: tokens that end a sample; the stop token is kept.
        sampling: how tokens are chosen; the full distribution where not given.
        seed, sample_ids: name the random stream of each sample; sample ids are the prompts' positions by default.
        batch_size: how many samples are worked on at once.
        on_token: called with (prompt position, token id) as each token is chosen.

    Returns:
        One `Generated` per prompt, in their order.
    """
    sampling = sampling or Sampling()
    ids = list(sample_ids) if sample_ids is not None else list(range(len(prompts)))
    results = [Generated() for _ in prompts]
    if max_new_tokens < 1:
        return results
    was_training = model.training
    model.eval()
    # Long prompts first: rows of a batch have like lengths, and the largest batch shows early whether it fits.
    order = sorted(range(len(prompts)), key=lambda row: (-len(prompts[row]), row))
    try:
        for start in range(0, len(order), batch_size):
            batch = _Batch(model, prompts, order[start : start + batch_size], max_new_tokens)
            uniforms = {row: uniform_numbers(seed, ids[row], max_new_tokens) for row in batch.rows}
            for position in range(max_new_tokens):
                drawn = torch.tensor([uniforms[row][position] for row in batch.rows], dtype=torch.float64)
                chosen, logprobs = choose_tokens(batch.logits, sampling, drawn)
                going = _record(results, batch.rows, chosen.tolist(), logprobs.tolist(), set(stop_ids), on_token)
                if not going or position == max_new_tokens - 1:
                    break
                batch.advance(chosen, going)
    finally:
        model.train(was_training)
    return results


def _record(
    results: list[Generated],
    rows: Sequence[int],
    chosen: Sequence[int],
    logprobs: Sequence[float],
    stop_ids: set[int],
    on_token: Callable[[int, int], None] | None,
) -> list[int]:
    """Add the chosen tokens to the samples; return the positions in the batch of those that go on."""
    going = []
    for position, (row, token, logprob) in enumerate(zip(rows, chosen, logprobs, strict=True)):
        sample = results[row]
        sample.ids.append(token)
        sample.logprobs.append(logprob)
        if on_token is not None:
            on_token(row, token)
        if token in stop_ids:
            sample.stopped = True
        else:
            going.append(position)
    return going


class _Batch:
    """Prompts that are continued together: left-padded, with their cache; finished rows are dropped."""

    def __init__(
        self, model: Transformer, prompts: Sequence[Sequence[int]], rows: list[int], max_new_tokens: int
    ) -> None:
        self.model, self.rows = model, list(rows)
        parameter = next(model.parameters())
        longest = max(len(prompts[row]) for row in rows)
        tokens = torch.zeros((len(rows), longest), dtype=torch.int64)
        self.mask = torch.zeros((len(rows), longest + max_new_tokens), dtype=torch.bool)
        self.mask[:, longest:] = True
        for position, row in enumerate(rows):
            prompt = prompts[row]
            tokens[position, longest - len(prompt) :] = torch.tensor(list(prompt), dtype=torch.int64)
            self.mask[position, longest - len(prompt) : longest] = True
        self.mask = self.mask.to(parameter.device)
        self.cache = KVCache(
            model.config, len(rows), longest + max_new_tokens, dtype=parameter.dtype, device=parameter.device
        )
        self.logits = self._forward(tokens.to(parameter.device))

    def _forward(self, tokens: torch.Tensor) -> torch.Tensor:
        seen = self.mask[:, : self.cache.length + tokens.shape[1]]
        hidden = self.model(tokens, attention_mask=seen, cache=self.cache)
        return self.model.logits(hidden[:, -1])

    def advance(self, chosen: torch.Tensor, going: Sequence[int]) -> None:
        """Feed the chosen tokens of the rows that go on."""
        if len(going) < len(self.rows):
            keep = torch.tensor(list(going), device=self.mask.device)
            self.cache.select(keep)
            self.mask, chosen = self.mask[keep], chosen[keep]
            self.rows = [self.rows[position] for position in going]
        self.logits = self._forward(chosen.unsqueeze(1))
