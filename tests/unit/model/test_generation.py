"""Sampling: frequencies, recorded log-probabilities, independence of batch mates, stopping."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from llmctl.model.config import ModelConfig
from llmctl.model.cross_entropy import token_logprobs
from llmctl.model.generation import Sampling, choose_tokens, filter_logits, generate, uniform_numbers
from llmctl.model.transformer import Transformer

torch.set_num_threads(1)
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10], [11, 12]]
STOP = [0, 13, 29, 31]


@pytest.fixture(scope="module")
def model() -> Transformer:
    shape = ModelConfig(
        vocab_size=97, num_layers=2, hidden_size=32, num_heads=4, num_kv_heads=2, ffn_hidden_size=64, init_std=0.25
    )
    return Transformer(shape, seed=1)


def sample(model: Transformer, **changes):
    arguments = {"max_new_tokens": 12, "stop_ids": STOP, "seed": 3, **changes}
    return generate(model, PROMPTS, **arguments)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_recorded_logprobs_are_those_of_a_full_forward_pass(model: Transformer, temperature: float) -> None:
    for prompt, one in zip(PROMPTS, sample(model, sampling=Sampling(temperature=temperature)), strict=True):
        whole = torch.tensor([prompt + one.ids])
        with torch.no_grad():
            logits = model.logits(model(whole[:, :-1])) / temperature
        again = token_logprobs(logits, whole[:, 1:])[0, len(prompt) - 1 :]
        assert float((again - torch.tensor(one.logprobs)).abs().max()) < 1e-5


def test_text_does_not_depend_on_batch_mates_or_batch_size(model: Transformer) -> None:
    together = [one.ids for one in sample(model)]
    assert [one.ids for one in sample(model, batch_size=2)] == together
    alone = [
        generate(model, [prompt], max_new_tokens=12, stop_ids=STOP, seed=3, sample_ids=[index])[0].ids
        for index, prompt in enumerate(PROMPTS)
    ]
    assert alone == together
    assert [one.ids for one in sample(model, seed=4)] != together


def test_stops_at_a_stop_token_and_keeps_it(model: Transformer) -> None:
    results = sample(model, max_new_tokens=60)
    assert any(one.stopped for one in results)
    for one in results:
        assert one.stopped == (one.ids[-1] in STOP)
        assert not set(one.ids[:-1]) & set(STOP)
        assert len(one.ids) == len(one.logprobs) <= 60
        assert one.stopped or len(one.ids) == 60


def test_greedy_takes_the_likeliest_token(model: Transformer) -> None:
    for prompt, one in zip(PROMPTS, sample(model, sampling=Sampling(temperature=0)), strict=True):
        ids = list(prompt)
        for token in one.ids:
            with torch.no_grad():
                assert token == int(model.logits(model(torch.tensor([ids])))[0, -1].argmax())
            ids.append(token)


def test_frequencies_equal_the_models_probabilities(model: Transformer) -> None:
    count = 4000
    drawn = generate(model, [[5, 6, 7]] * count, max_new_tokens=1, stop_ids=[], seed=11, batch_size=1000)
    with torch.no_grad():
        probabilities = model.logits(model(torch.tensor([[5, 6, 7]])))[0, -1].double().softmax(-1).numpy()
    observed = np.bincount([one.ids[0] for one in drawn], minlength=97)
    common = probabilities * count >= 5
    expected = np.append(probabilities[common] * count, probabilities[~common].sum() * count)
    seen = np.append(observed[common], observed[~common].sum())
    assert stats.chisquare(seen, expected * seen.sum() / expected.sum()).pvalue > 1e-3
    # A hidden top-k of 50 would never draw the rest.
    assert observed[np.argsort(-probabilities)[50:]].sum() > 0


def test_second_token_follows_the_model_too(model: Transformer) -> None:
    count = 3000
    drawn = generate(model, [[5, 6, 7]] * count, max_new_tokens=2, stop_ids=[], seed=2, batch_size=1000)
    firsts = np.bincount([one.ids[0] for one in drawn], minlength=97)
    first = int(firsts.argmax())
    seconds = [one.ids[1] for one in drawn if one.ids[0] == first]
    with torch.no_grad():
        probabilities = model.logits(model(torch.tensor([[5, 6, 7, first]])))[0, -1].double().softmax(-1).numpy()
    observed = np.bincount(seconds, minlength=97)
    common = probabilities * len(seconds) >= 5
    expected = np.append(probabilities[common], probabilities[~common].sum()) * len(seconds)
    seen = np.append(observed[common], observed[~common].sum())
    assert stats.chisquare(seen, expected).pvalue > 1e-3


def test_top_k_and_top_p_keep_the_likeliest() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    kept = lambda **options: torch.isfinite(filter_logits(logits, Sampling(**options)))[0].tolist()  # noqa: E731
    assert kept() == [True] * 4
    assert kept(top_k=2) == [True, True, False, False]
    assert kept(top_p=0.5) == [True, False, False, False]
    assert kept(top_p=0.6) == [True, True, False, False]
    assert kept(top_p=1e-9) == [True, False, False, False]
    assert kept(top_k=99) == [True] * 4


def test_choice_inverts_the_cumulative_distribution() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]])).repeat(5, 1)
    ids, logprobs = choose_tokens(
        logits, Sampling(), torch.tensor([0.0, 0.49, 0.51, 0.79, 0.999999], dtype=torch.float64)
    )
    assert ids.tolist() == [0, 0, 1, 1, 2]
    assert logprobs.exp().tolist() == pytest.approx([0.5, 0.5, 0.3, 0.3, 0.2], abs=1e-6)
    excluded, _ = choose_tokens(logits[:1], Sampling(top_k=1), torch.tensor([0.9999999], dtype=torch.float64))
    assert excluded.tolist() == [0]


def test_random_numbers_name_a_sample() -> None:
    assert np.array_equal(uniform_numbers(1, 2, 5), uniform_numbers(1, 2, 8)[:5])
    assert not np.array_equal(uniform_numbers(1, 2, 5), uniform_numbers(1, 3, 5))
    assert not np.array_equal(uniform_numbers(1, 2, 5), uniform_numbers(2, 2, 5))


def test_training_mode_is_left_as_it_was(model: Transformer) -> None:
    model.train()
    sample(model)
    assert model.training
    model.eval()
    assert sample(model, max_new_tokens=0)[0].ids == []
