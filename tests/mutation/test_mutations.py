"""Faults that are easy to make are put into a copy of the sources, one at a time: named tests must fail on each.

Run on demand: ``pytest tests/mutation``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNIT = "tests/unit"
PPO = f"{UNIT}/training/losses/test_ppo.py"
GRPO = f"{UNIT}/training/losses/test_grpo.py"
ADVANTAGES = f"{UNIT}/rlhf/test_advantages.py"
ROLLOUT = f"{UNIT}/rlhf/test_rollout.py"
COMPARISONS = f"{UNIT}/rlhf/test_comparison_training.py"

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Mutation:
    """One fault: `old` stands once in `file` and becomes `new`; each of `tests` must fail then, and pass before."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTATIONS = {
    "the sign of the KL is flipped": Mutation(
        "rlhf/advantages.py",
        "rewards = -kl_coef * kl",
        "rewards = kl_coef * kl",
        (
            f"{ADVANTAGES}::test_score_stands_at_the_last_token_and_kl_everywhere",
            f"{PPO}::test_reaches_the_optimum_of_the_penalised_objective[0.5]",
        ),
    ),
    "the sign of GRPO's KL is flipped": Mutation(
        "training/losses/grpo.py",
        "losses = losses + self.kl_coef * kl",
        "losses = losses - self.kl_coef * kl",
        (f"{GRPO}::test_kl_stands_in_the_loss_with_its_sign[k2]",),
    ),
    "another estimator of the KL in the reward": Mutation(
        "rlhf/advantages.py",
        "rewards = -kl_coef * kl",
        "rewards = -kl_coef * 0.5 * kl.square()",
        (f"{PPO}::test_reaches_the_optimum_of_the_penalised_objective[0.5]",),
    ),
    "the score stands one token later": Mutation(
        "rlhf/advantages.py",
        "last = last_response_position(mask).unsqueeze(1)",
        "last = (last_response_position(mask) + 1).clamp_max(mask.shape[1] - 1).unsqueeze(1)",
        (
            f"{ADVANTAGES}::test_score_stands_at_the_last_token_and_kl_everywhere",
            f"{PPO}::test_reaches_the_optimum_of_the_penalised_objective[0.5]",
        ),
    ),
    "top_k is left at 50": Mutation(
        "rlhf/rollout.py",
        "sampling=Sampling(temperature=self.config.temperature)",
        "sampling=Sampling(temperature=self.config.temperature, top_k=50)",
        (f"{ROLLOUT}::test_first_tokens_come_from_the_full_distribution[1.0]",),
    ),
    "samples are drawn at another temperature": Mutation(
        "rlhf/rollout.py",
        "sampling=Sampling(temperature=self.config.temperature)",
        "sampling=Sampling(temperature=1.0)",
        (f"{ROLLOUT}::test_first_tokens_come_from_the_full_distribution[0.6]",),
    ),
    "the end of the answer is masked out": Mutation(
        "rlhf/padding.py",
        "positions < torch.tensor(list(lengths)).unsqueeze(1)",
        "positions < torch.tensor(list(lengths)).unsqueeze(1) - 1",
        (
            f"{COMPARISONS}::test_response_masks_cover_the_answer_and_its_end",
            f"{ROLLOUT}::test_micro_batches_and_minibatches_hold_every_answer_once_with_logprobs_equal_to_recomputation",
        ),
    ),
    "dropout is on": Mutation(
        "training/response.py",
        "hidden = model(input_ids)[:, :-1][mask]",
        "hidden = torch.nn.functional.dropout(model(input_ids), 0.1)[:, :-1][mask]",
        (
            f"{PPO}::test_ratio_is_one_before_the_first_update",
            f"{UNIT}/rlhf/test_group_train.py::test_earns_more_of_the_reward_and_keeps_its_invariants[rloo]",
        ),
    ),
    "advantages are whitened without the mask": Mutation(
        "rlhf/advantages.py",
        "chosen = [values[mask].double() for values, mask in parts]",
        "chosen = [values.flatten().double() for values, mask in parts]",
        (f"{ADVANTAGES}::test_whitening_counts_response_tokens_only",),
    ),
    "the baseline of a group counts the answer itself": Mutation(
        "rlhf/advantages.py",
        "centred = centred * (group_size / (group_size - 1))",
        "centred = centred * 1.0",
        (f"{GRPO}::test_advantages_of_groups",),
    ),
    "padding counts in the loss": Mutation(
        "training/losses/ppo.py",
        "return LossOutput((losses * mask).sum(), metrics)",
        "return LossOutput(losses.sum() + (~mask).sum() * 0.01, metrics)",
        (f"{PPO}::test_padding_changes_neither_loss_nor_gradient",),
    ),
}


def _run(tests: tuple[str, ...], source: Path | None, only: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    if source is not None:
        environment["PYTHONPATH"] = str(source)
    arguments = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(tests if only is None else (only,))]
    return subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy of the package, to be mutated."""
    folder = tmp_path_factory.mktemp("mutated")
    shutil.copytree(ROOT / "src" / "llmctl", folder / "llmctl", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_named_tests_pass_on_an_unchanged_copy_full_grid(copy) -> None:
    every = tuple(sorted({test for mutation in MUTATIONS.values() for test in mutation.tests}))
    done = _run(every, copy)
    assert done.returncode == 0, done.stdout[-3000:]
    probe = [sys.executable, "-c", "import llmctl; print(llmctl.__file__)"]
    found = subprocess.run(
        probe, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(copy)}, capture_output=True, text=True, check=True
    ).stdout
    assert found.startswith(str(copy)), "the copy is what is tested"


@pytest.mark.parametrize("name", MUTATIONS)
def test_fault_is_caught_full_grid(name: str, copy) -> None:
    mutation = MUTATIONS[name]
    path = copy / "llmctl" / mutation.file
    text = path.read_text(encoding="utf-8")
    assert text.count(mutation.old) == 1, f"{mutation.file} has changed: adapt this mutation"
    path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        for test in mutation.tests:
            done = _run(mutation.tests, copy, test)
            assert done.returncode == 1, f"{test} does not notice that {name}\n{done.stdout[-2000:]}"
    finally:
        path.write_text(text, encoding="utf-8")
