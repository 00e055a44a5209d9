"""Every rule is silent on healthy runs of many shapes."""

from __future__ import annotations

import numpy as np
import pytest

from llmctl.diagnosis.registry import build_rule, lacking, rule_classes

RULES = sorted(rule_classes())


def found_in(run) -> list[str]:
    evidence = run.evidence()
    found = []
    for name in RULES:
        rule = build_rule(name)
        if not lacking(rule, evidence):
            found += [f"{finding.rule}: {finding.evidence}" for finding in rule.check(evidence)]
    return found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("steps", [40, 200, 1500])
def test_pretraining_is_healthy(make_pretraining, steps: int, seed: int) -> None:
    assert found_in(make_pretraining(steps, seed)) == []


@pytest.mark.parametrize("seed", range(8))
def test_small_batches_are_noisy_and_healthy(make_pretraining, seed: int) -> None:
    assert found_in(make_pretraining(500, seed, noise=0.15, tail=1.0)) == []


@pytest.mark.parametrize("seed", range(6))
def test_fine_tuning_starts_low_and_moves_little(make_pretraining, seed: int) -> None:
    run = make_pretraining(300, seed, start=2.1, end=1.7, noise=0.12, peak=2e-5)
    assert found_in(run) == []


@pytest.mark.parametrize("seed", range(4))
def test_fine_tuning_without_warmup_comes_to_no_harm(make_pretraining, seed: int) -> None:
    run = make_pretraining(200, seed, start=2.4, end=1.6, noise=0.08, peak=1e-5, warmup=0)
    run["lr"] = np.linspace(1e-5, 0, 200)
    assert found_in(run) == []


@pytest.mark.parametrize("seed", range(4))
def test_a_single_high_gradient_norm_is_clipped_away(make_pretraining, seed: int) -> None:
    run = make_pretraining(400, seed)
    run["grad_norm"][200 + seed] *= 30
    assert found_in(run) == []


@pytest.mark.parametrize("seed", range(8))
def test_reinforcement_is_healthy(make_reinforcement, seed: int) -> None:
    assert found_in(make_reinforcement(80, seed)) == []


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ranks", [2, 8])
def test_ranks_are_healthy(make_pretraining, give_ranks, ranks: int, seed: int) -> None:
    assert found_in(give_ranks(make_pretraining(200, seed), ranks, seed)) == []


@pytest.mark.parametrize("seed", range(4))
def test_fp16_with_a_saw_tooth_scale_is_healthy(make_pretraining, seed: int) -> None:
    run = make_pretraining(400, seed)
    run.config["precision"] = "fp16"
    scale, values = 2.0**24, []
    for step in range(400):
        if step < 10 or step % 97 == 50 + seed:
            scale /= 2
            run["grad_norm"][step] = np.inf
        elif step % 100 == 99:
            scale *= 2
        values.append(scale)
    run["loss_scale"] = np.array(values)
    assert found_in(run) == []


def test_a_constant_log_is_no_reason_to_fail(make_pretraining) -> None:
    run = make_pretraining(50)
    for name in run.columns:
        if name not in ("step", "tokens"):
            run[name] = np.full(50, 1.0)
    # Nothing moves, so the loss has not learnt; no other rule may stumble over a spread of zero.
    assert {line.partition(":")[0] for line in found_in(run)} <= {"not_learning", "data_wait", "communication_bound"}


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8, 19])
def test_short_runs_are_judged_without_stumbling(make_pretraining, steps: int) -> None:
    assert found_in(make_pretraining(steps)) == []
