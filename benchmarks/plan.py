"""Compare the planner with published runs, and fit its constants again.

    python benchmarks/plan.py TABLES          errors by table
    python benchmarks/plan.py TABLES --fit    constants from table 4 of Korthikanti et al. and the even BLOOM rows

TABLES is a folder with the published tables as CSV (a1_, a2_, b2_, b4_, e1_, e6_, …). Ratios are predicted by measured.
"""

from __future__ import annotations

import csv
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llmctl.planning.constants import Constants
from llmctl.planning.hardware import Hardware, find
from llmctl.planning.layout import PlanLayout
from llmctl.planning.memory import Precision, memory_by_stage, precision_of
from llmctl.planning.model import ModelShape
from llmctl.planning.step import Job, predict
from llmctl.planning.time import layer_time

# Korthikanti et al. 2022, table 5: seconds of an iteration with (full recomputation, selective + sequence parallelism).
TABLE_5 = {"22B": (1.42, 1.10), "175B (GPT-3)": (18.13, 13.75), "530B (MT-NLG)": (49.05, 37.83), "1T": (94.42, 71.49)}
# Same paper, section 6.3: 530B on 2240 GPUs (8 replicas).
TABLE_5_DATA_PARALLEL = 39.15
# Rows that stand far from their repetitions in the same log.
BLOOM_OUTLIERS = {"775", "930"}


@dataclass(frozen=True)
class Case:
    """One published run: what was run, and what was measured (seconds of a step)."""

    name: str
    shape: ModelShape
    layout: PlanLayout
    seconds: float
    zero_stage_3: bool = False


def read(tables: Path, prefix: str) -> list[dict[str, str]]:
    """Return the rows of a table that were read in a stored copy (`from_memory` 0)."""
    (path,) = tables.glob(f"{prefix}_*.csv")
    with open(path, newline="", encoding="utf-8") as handle:
        return [row for row in csv.DictReader(handle) if row["from_memory"] == "0"]


def gpt(layers: int, hidden: int, heads: int, vocab: int = 51200, seq_len: int = 2048) -> ModelShape:
    """Return a GPT shape as Megatron-LM builds it."""
    return ModelShape(layers, hidden, heads, vocab, seq_len=seq_len, gated_mlp=False)


def job(shape: ModelShape, hardware: Hardware, constants: Constants | None = None, gradients: str | None = None) -> Job:
    """Return the job of a published A100 run in half precision."""
    return Job(
        shape, hardware, "fp16", precision_of("fp16", gradients=gradients), "core", 0.0, constants or Constants()
    )


def sc21_weak_scaling(tables: Path) -> list[Case]:
    """Return Narayanan et al. 2021, table 1 (full recomputation)."""
    cases = []
    for row in read(tables, "a1"):
        shape = gpt(int(row["num_layers"]), int(row["hidden_size"]), int(row["attention_heads"]))
        chunks = int(row["virtual_stages(derived from run_table_1.sh)"])
        layout = PlanLayout(
            int(row["tp"]),
            int(row["pp"]),
            int(row["dp(derived)"]),
            int(row["micro_batch(run_table_1.sh)"]),
            int(row["global_batch"]),
            "full",
            schedule="interleaved" if chunks > 1 else "1f1b",
            virtual_stages=chunks,
        )
        seconds = shape.hardware_flops(layout.global_batch_size, "full") / (
            layout.gpus * float(row["tflops_per_gpu"]) * 1e12
        )
        cases.append(Case(f"{row['params_billion']}B", shape, layout, seconds))
    return cases


def sc21_against_zero3(tables: Path) -> list[Case]:
    """Return Narayanan et al. 2021, table 2: PTD-P and ZeRO-3 (full recomputation)."""
    cases = []
    for row in read(tables, "a2"):
        small = row["params_billion"] == "174.6"
        shape = gpt(96, 12288, 96) if small else gpt(105, 20480, 128)
        gpus, zero3 = int(row["gpus"]), row["scheme"] == "ZeRO-3"
        tp, pp = (1, 1) if zero3 else (8, int(row["model_parallel_size"]) // 8)
        layout = PlanLayout(
            tp,
            pp,
            gpus // (tp * pp),
            int(row["micro_batch"]),
            int(row["global_batch"]),
            "full",
            zero_stage=3 if zero3 else 0,
        )
        seconds = shape.hardware_flops(layout.global_batch_size, "full") / (gpus * float(row["tflops_per_gpu"]) * 1e12)
        cases.append(Case(f"{row['scheme']} {row['params_billion']}B {gpus}", shape, layout, seconds, zero3))
    return cases


def korthikanti_iterations(tables: Path) -> list[Case]:
    """Return Korthikanti et al. 2022, table 5, for the configurations of its table 3, and the data-parallel run."""
    cases = []
    for row in read(tables, "b2"):
        shape = gpt(int(row["layers"]), int(row["hidden"]), int(row["heads"]))
        chunks = int(row["interleave_m"])
        layout = PlanLayout(
            int(row["tp"]),
            int(row["pp"]),
            int(row["dp"]),
            int(row["micro_batch"]),
            int(row["global_batch"]),
            "full",
            schedule="interleaved" if chunks > 1 else "1f1b",
            virtual_stages=chunks,
        )
        ours = replace(layout, recompute="selective", sequence_parallel=True)
        full, selective = TABLE_5[row["model"]]
        cases += [
            Case(f"{row['model']} full", shape, layout, full),
            Case(f"{row['model']} selective", shape, ours, selective),
        ]
        if row["model"].startswith("530B"):
            wide = replace(ours, dp=8, global_batch_size=8 * layout.global_batch_size)
            cases.append(Case("530B selective, 8 replicas", shape, wide, TABLE_5_DATA_PARALLEL))
    return cases


def bloom(tables: Path) -> list[tuple[Case, dict[str, str]]]:
    """Return the BLOOM sweep at 384 GPUs since 02-25 (one setup), heads in multiples of 8, without the outliers."""
    found = []
    for row in read(tables, "e6"):
        heads = int(row["heads"] or 64)
        late = row["date_or_note"] >= "02-25" and row["gpus"] == "384" and row["line"] not in BLOOM_OUTLIERS
        if not late or int(row["hidden"]) // heads % 8 or not _is_number(row["sec_per_iter"]):
            continue
        shape = gpt(int(row["layers"]), int(row["hidden"]), heads, 250880)
        tp, pp, dp = int(row["tp"]), int(row["pp"]), int(row["dp"])
        layout = PlanLayout(tp, pp, dp, int(row["micro_batch"]), int(row["global_batch"]), "full", zero_stage=1)
        found.append((Case(row["line"], shape, layout, float(row["sec_per_iter"])), row))
    return found


def _is_number(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False


def ratios(cases: Sequence[Case], hardware: Hardware, constants: Constants | None = None) -> list[float]:
    """Return predicted by measured seconds of each case."""
    return [predict(job(case.shape, hardware, constants), case.layout).seconds / case.seconds for case in cases]


LAYER_MODES = {
    "Baseline no recompute": ("none", False),
    "Sequence Parallelism": ("none", True),
    "Baseline with recompute": ("full", False),
    "Selective Recompute": ("selective", False),
    "Selective + Sequence": ("selective", True),
}


def layer_ratios(tables: Path, hardware: Hardware, constants: Constants | None = None) -> list[float]:
    """Return predicted by measured forward and backward times of one layer (Korthikanti et al. 2022, table 4)."""
    shape, found = gpt(48, 6144, 64), []
    for row in read(tables, "b4"):
        recompute, sequence = LAYER_MODES[row["experiment"]]
        layout = PlanLayout(8, 1, 1, 4, 4, recompute, sequence)
        times = layer_time(shape, layout, job(shape, hardware, constants).device, "core").times
        found.append(times.forward * 1e3 / float(row["forward_ms"]))
        found.append((times.backward_input + times.backward_weight) * 1e3 / float(row["backward_ms"]))
    return found


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's rank correlation (ties share their mean rank)."""
    left, right = _ranks(first), _ranks(second)
    mean = (len(left) + 1) / 2
    covariance = sum((a - mean) * (b - mean) for a, b in zip(left, right, strict=True))
    spread = math.sqrt(sum((a - mean) ** 2 for a in left) * sum((b - mean) ** 2 for b in right))
    return covariance / spread


def _ranks(values: Sequence[float]) -> list[float]:
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values
    ]


def zero_bubble_memory(tables: Path) -> Iterator[tuple[str, float]]:
    """Yield (name, predicted by measured) peak memory of 1F1B in Qi et al. 2024, table 4."""
    for row in read(tables, "e1"):
        shape = gpt(int(row["layers"]), int(row["hidden"]), int(row["heads"]), 50304, 1024)
        micro, count = int(row["micro_batch"]), int(row["num_microbatches"])
        layout = PlanLayout(1, int(row["pp"]), 1, micro, micro * count)
        peak = max(stage.total for stage in memory_by_stage(shape, layout, precision_of("fp16")))
        yield f"{row['model']} m{count}", peak / 1e9 / float(row["mem_GB_1F1B"])


def bloom_memory(tables: Path, hardware: Hardware) -> Iterator[tuple[str, float]]:
    """Yield (line, predicted by nvidia-smi) memory of the BLOOM sweep. Its bf16 runs keep bf16 and fp32 gradients."""
    for row in read(tables, "e6"):
        if not _is_number(row["max_mem_GB"]) or not row["layers"].isdigit() or not row["dp"]:
            continue
        shape = gpt(int(row["layers"]), int(row["hidden"]), int(row["heads"] or 64), 250880)
        layout = PlanLayout(
            int(row["tp"]),
            int(row["pp"]),
            int(row["dp"]),
            int(row["micro_batch"]),
            int(row["global_batch"]),
            "full",
            zero_stage=1,
        )
        precision = Precision(2, 6 if "bf16" in row["dtype"] else 2, 12, 2)
        peak = max(stage.device for stage in memory_by_stage(shape, layout, precision, "core", hardware))
        yield row["line"], peak / 1e9 / float(row["max_mem_GB"])


def _say(name: str, values: Sequence[float]) -> None:
    errors = sorted(abs(value - 1) for value in values)
    print(
        f"{name:<44} n {len(values):>2}   {min(values) - 1:+7.1%} … {max(values) - 1:+7.1%}   median |error| "
        f"{statistics.median(errors):.1%}   mean {statistics.mean(errors):.1%}"
    )


def report(tables: Path) -> None:
    """Print the errors of every table."""
    selene, jean_zay = find("a100-80g"), find("a100-80g-jeanzay")
    _say("b4 layer times (fitted)", layer_ratios(tables, selene))
    table_5 = ratios(korthikanti_iterations(tables), selene)
    _say("Korthikanti table 5, iteration", table_5)
    weak = ratios(sc21_weak_scaling(tables), selene)
    both = sc21_against_zero3(tables)
    ptdp = ratios([case for case in both if not case.zero_stage_3], selene)
    zero3 = ratios([case for case in both if case.zero_stage_3], selene)
    _say("a1 SC21 table 1, iteration", weak)
    _say("a2 SC21 table 2, PTD-P", ptdp)
    _say("a2 SC21 table 2, ZeRO-3", zero3)
    factor = statistics.median(weak + ptdp)
    _say(f"a1 + a2 PTD-P after one factor {factor:.3f}", [value / factor for value in weak + ptdp])
    sweep = [case for case, _ in bloom(tables)]
    for name, hardware in (("as a100-80g", selene), ("as a100-80g-jeanzay", jean_zay)):
        found = ratios(sweep, hardware)
        factor = statistics.median(found)
        _say(f"e6 BLOOM even rows {name}", found)
        _say(f"  after one factor {factor:.3f}", [value / factor for value in found])
        measured = [case.seconds for case in sweep]
        predicted = [value * case.seconds for value, case in zip(found, sweep, strict=True)]
        print(f"  rank correlation {rank_correlation(measured, predicted):.2f}")
    _say("e1 peak memory, 1F1B", [ratio for _, ratio in zero_bubble_memory(tables)])
    _say("e6 memory against nvidia-smi", [ratio for _, ratio in bloom_memory(tables, jean_zay)])


FREE = ("matmul_share", "memory_share", "link_share", "regather_exposed")


def fit_layers(tables: Path, start: Constants) -> Constants:
    """Fit the constants of table 4 by coordinate descent on the squared relative errors."""
    hardware = find("a100-80g")

    def loss(constants: Constants) -> float:
        return sum((ratio - 1) ** 2 for ratio in layer_ratios(tables, hardware, constants))

    best, step = start, 0.1
    while step > 1e-4:
        improved = False
        for name in FREE:
            for factor in (1 + step, 1 / (1 + step)):
                value = min(getattr(best, name) * factor, 1.0)
                trial = replace(best, **{name: value})
                if loss(trial) < loss(best) - 1e-12:
                    best, improved = trial, True
        if not improved:
            step /= 2
    return best


def fit(tables: Path) -> None:
    """Print constants fitted anew: shape constants on a grid, the others on table 4 for each."""
    sweep = [case for case, _ in bloom(tables)]
    for rows_half in (0.0, 150.0, 300.0, 450.0, 600.0):
        for work_half in (0.0, 1e10, 2e10, 4e10):
            start = replace(Constants(), matmul_rows_half=rows_half, matmul_work_half=work_half)
            constants = fit_layers(tables, start)
            found = ratios(sweep, find("a100-80g"), constants)
            factor = statistics.median(found)
            error = statistics.mean(abs(value / factor - 1) for value in found)
            values = ", ".join(f"{name} {getattr(constants, name):.4f}" for name in FREE)
            print(f"rows_half {rows_half:>4.0f}  work_half {work_half:.0e}  {values}  BLOOM mean error {error:.1%}")


def main() -> int:
    """Run the comparison."""
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    if len(arguments) != 1:
        print(__doc__)
        return 2
    tables = Path(arguments[0])
    if "--fit" in sys.argv:
        fit(tables)
    else:
        report(tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
