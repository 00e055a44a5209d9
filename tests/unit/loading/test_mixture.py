"""The mixture: exact whole numbers by phase, shares within one sample at every prefix, repetition, refusals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmctl.config.load import build
from llmctl.errors import UserError
from llmctl.loading.config import MixtureConfig
from llmctl.loading.mixture import columns_of, largest_remainder, phase_steps, plan_mixture
from llmctl.loading.schedule import Schedule
from llmctl.pretraining.stage import read_table

STAGED = read_table("staged")
FOUR = ["dialogue", "knowledge", "code", "other"]


def plan_of(config, steps=100, batch=20, size=10_000, names=FOUR, sizes=None, **more):
    sizes = sizes or dict.fromkeys(names, size)
    return plan_mixture(config, {name: [name] for name in names}, sizes, steps=steps, global_batch_size=batch, **more)


def test_the_staged_table_owns_starts_not_ends():
    plan = plan_of(STAGED)
    assert plan.columns == ("dialogue", "knowledge", "code", "other")
    assert [(phase.first_step, phase.steps) for phase in plan.phases] == [(1, 10), (11, 20), (31, 70)]
    assert [phase.counts for phase in plan.phases] == [
        (120, 40, 10, 30),
        (160, 120, 60, 60),
        (350, 490, 350, 210),
    ]
    schedule = Schedule(plan)
    # The first 1 % is part of the first phase; step 11 of 100, which starts at exactly 10 %, is of the second.
    assert np.bincount(schedule.step(1)[0], minlength=4).tolist() == [12, 4, 1, 3]
    assert np.bincount(schedule.step(10)[0], minlength=4).tolist() == [12, 4, 1, 3]
    assert np.bincount(schedule.step(11)[0], minlength=4).tolist() == [8, 6, 3, 3]
    assert np.bincount(schedule.step(31)[0], minlength=4).tolist() == [5, 7, 5, 3]


@pytest.mark.parametrize("steps", [1, 7, 10, 33, 1000])
def test_phases_are_exact_where_floats_are_not(steps):
    owned = phase_steps([0, 0.1, 0.3, 0.7], steps)
    for step in range(1, steps + 1):
        progress = Fraction(step - 1, steps)
        tenths = [0, 1, 3, 7, 10]
        (phase,) = (
            index for index in range(4) if Fraction(tenths[index], 10) <= progress < Fraction(tenths[index + 1], 10)
        )
        assert [step in steps for steps in owned] == [index == phase for index in range(4)]


tables = st.integers(1, 6).flatmap(
    lambda columns: st.lists(
        st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0, 7.25, 60.0, 1e-3]), min_size=columns, max_size=columns).filter(
            lambda row: sum(row) > 0
        ),
        min_size=1,
        max_size=4,
    )
)


@given(tables, st.integers(1, 60), st.integers(1, 24))
@settings(max_examples=120, deadline=None)
def test_any_table_is_kept_to_within_one_sample_at_every_prefix(table, steps, batch):
    names = [f"s{index}" for index in range(len(table[0]))]
    config = build(
        MixtureConfig,
        {
            "phases": [
                {"start": index / len(table), "weights": dict(zip(names, row, strict=True))}
                for index, row in enumerate(table)
            ]
        },
    )
    plan = plan_of(config, steps, batch, names=names)
    assert sum(phase.steps for phase in plan.phases) == steps
    assert sum(plan.totals) == steps * batch
    schedule = Schedule(plan)
    seen = dict.fromkeys(names, 0)
    for phase, row in zip(plan.phases, table, strict=True):
        total = phase.steps * batch
        for name, weight, count in zip(names, row, phase.counts, strict=True):
            assert abs(count - total * Fraction(weight) / sum(map(Fraction, row))) < 1, name
        taken = np.zeros(len(names), np.int64)
        done = 0
        for step in range(phase.first_step, phase.first_step + phase.steps):
            columns, numbers = schedule.step(step)
            assert len(columns) == batch
            for column, number in zip(columns.tolist(), numbers.tolist(), strict=True):
                assert number == seen[names[column]]  # every sequence of a column in turn, none left out
                seen[names[column]] += 1
                taken[column] += 1
                done += 1
                wanted = np.array(phase.counts) * done
                assert (abs(taken * total - wanted) < total).all()
        assert taken.tolist() == list(phase.counts)


def test_rounding_loses_no_sample():
    # Shares that rounding to nearest would turn into 101 and 99 of 100 samples.
    assert largest_remainder(100, [Fraction(1, 8)] * 8) == [13, 13, 13, 13, 12, 12, 12, 12]
    assert largest_remainder(10, [Fraction(1), Fraction(1), Fraction(1)]) == [4, 3, 3]
    assert largest_remainder(0, [Fraction(1)]) == [0]
    assert sum(largest_remainder(10**12 + 7, [Fraction(1, 3), Fraction(1, 7), Fraction(10**9)])) == 10**12 + 7


def test_a_long_run_stays_exact():
    plan = plan_of(STAGED, steps=3_000_000, batch=4096, size=10**9)
    assert sum(plan.totals) == 3_000_000 * 4096
    columns, _ = Schedule(plan).step(300_001)
    counts = np.bincount(columns, minlength=4)
    assert (abs(counts - 4096 * np.array([0.4, 0.3, 0.15, 0.15])) <= 1).all()


def test_a_source_that_runs_out():
    sizes = {"dialogue": 100, "knowledge": 10_000, "code": 10_000, "other": 10_000}
    with pytest.raises(UserError, match=r"sees dialogue 6.30 times .630 samples, 100 an epoch., and max_epochs is 2"):
        plan_of(STAGED, sizes=sizes, max_epochs=2)
    assert plan_of(STAGED, sizes=sizes, max_epochs=6.3).epochs[0] == 6.3
    assert plan_of(STAGED, sizes=sizes, max_epochs=2, when_exhausted="repeat").totals[0] == 630
    assert plan_of(STAGED, sizes=sizes).totals[0] == 630  # no limit
    plan = plan_of(STAGED, sizes=sizes, max_epochs=2, when_exhausted="renormalize")
    assert plan.totals[0] == 200
    assert [phase.counts[0] for phase in plan.phases] == [120, 80, 0]
    assert [sum(phase.counts) for phase in plan.phases] == [200, 400, 1400]
    # 320 samples are left for 30/15/15, and 1,400 for 35/25/15.
    assert plan.phases[1].counts[1:] == (160, 80, 80)
    assert plan.phases[2].counts[1:] == (653, 467, 280)
    with pytest.raises(UserError, match="used up at 1 epochs"):
        plan_of(STAGED, size=100, max_epochs=1, when_exhausted="renormalize")
    assert max(plan_of(STAGED, size=500, max_epochs=1, when_exhausted="renormalize").epochs) <= 1


def test_the_limit_holds_without_a_table():
    config = MixtureConfig()
    plan = plan_mixture(config, {"all": ["a"]}, {"all": 50}, steps=10, global_batch_size=10)
    assert plan.epochs == (2.0,)
    with pytest.raises(UserError, match=r"sees the documents 2\.00 times"):
        plan_mixture(config, {"all": ["a"]}, {"all": 50}, steps=10, global_batch_size=10, max_epochs=1.5)


def test_sources_go_to_the_first_group_that_fits():
    columns = columns_of(STAGED, ["chat-en", "enwiki", "github_py", "weather"])
    assert columns == {
        "dialogue": ["chat-en"],
        "knowledge": ["enwiki"],
        "code": ["github_py"],
        "other": ["weather"],
    }


def test_mistakes_in_a_table_are_told():
    def table(*phases, **groups):
        return build(MixtureConfig, {"phases": list(phases), "groups": groups})

    with pytest.raises(UserError, match=r"starts at 0\.1"):
        table({"start": 0.1, "weights": {"a": 1}})
    with pytest.raises(UserError, match="not in order"):
        table({"weights": {"a": 1}}, {"start": 0.5, "weights": {"a": 1}}, {"start": 0.5, "weights": {"a": 1}})
    with pytest.raises(UserError, match=r"starts at 1$"):
        table({"weights": {"a": 1}}, {"start": 1, "weights": {"a": 1}})
    for weights in ({}, {"a": 0}, {"a": -1, "b": 3}, {"a": float("inf")}):
        with pytest.raises(UserError, match="make no shares"):
            table({"weights": weights})
    with pytest.raises(UserError, match="has no weight"):
        table({"weights": {"a": 1}}, b=["x"])
    with pytest.raises(UserError, match="says nothing of the sources b, c"):
        columns_of(table({"weights": {"a": 1}}), ["a", "b", "c"])
    with pytest.raises(UserError, match="weight to b, and the shards have no such source"):
        columns_of(table({"weights": {"a": 1, "b": 1}}), ["a"])
    with pytest.raises(UserError, match="no tokens"):
        plan_of(table({"weights": {"a": 1}}), names=["a"], size=0)
    with pytest.raises(UserError, match="no such configuration: stagd") as refused:
        read_table("stagd")
    assert "staged" in refused.value.hint
