"""Every constant of the time model, with what it was fitted on. Nothing else in the planner was tuned to a measurement.

The tables are named in docs/guides/plan.md; `benchmarks/plan.py --fit` fits them again.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Constants:
    """How far hardware stays below its figures.

    Attributes:
        matmul_share: rate of very large matrix products, as a share of the best measured rate of the accelerator.
        matmul_rows_half: rows (tokens of a micro-batch) at which a product reaches half of that.
        matmul_work_half: FLOPs of a product at which it reaches half of what its rows allow.
        memory_share: bandwidth of element-wise work, as a share of the vendor's figure.
        link_share: bus bandwidth of tensor-parallel all-reduces, as a share of the links' figure.
        regather_exposed: share of the sequence-parallel all-gathers in the backward pass that takes time of its own.
        backward_overlap: share of the backward all-reduces that hides behind weight gradients.
        gather_overlap: share of the compute time behind which ZeRO-3's gathers hide.
    """

    matmul_share: float = 0.9198
    matmul_rows_half: float = 400.0
    matmul_work_half: float = 2.0e10
    memory_share: float = 0.7782
    link_share: float = 0.7503
    regather_exposed: float = 0.9874
    backward_overlap: float = 0.7
    gather_overlap: float = 0.3


FITTED_ON = {
    "matmul_share": "Korthikanti et al. 2022, table 4 (layer times of the 22B model, 10 figures)",
    "matmul_rows_half": "BLOOM sweep on A100, even rows since 02-25 (first of two shape constants)",
    "matmul_work_half": "BLOOM sweep on A100, even rows since 02-25 (second of two shape constants)",
    "memory_share": "Korthikanti et al. 2022, table 4",
    "link_share": "Korthikanti et al. 2022, table 4",
    "regather_exposed": "Korthikanti et al. 2022, table 4",
    "backward_overlap": (
        "assumed, as table 4 does not decide it: with it the fitted link rate is the 225-230 GB/s that all-reduces "
        "reach on eight A100"
    ),
    "gather_overlap": "assumed, after a look at the ZeRO-3 rows of Narayanan et al. 2021, table 2; those are no gate",
}

# FlashAttention-2 (Dao 2023, figures 5 and 6): share of the peak that causal attention reaches, counting the half of
# the scores that it computes; the backward pass does 2.5 times the forward's work.
FLASH_FORWARD_SHARE = 0.60
FLASH_BACKWARD_SHARE = 0.52
FLASH_BACKWARD_WORK = 2.5

# Half-precision products whose inner width is no multiple of 8 miss the tensor cores; the A100's rate without them is
# a quarter of that with them (NVIDIA A100 data sheet: 78 and 312 TFLOP/s). The step as a whole lost more in the BLOOM
# sweep (lines 831 and 833: 42 % longer; predicted 7 %), so the plan warns as well.
MISALIGNED_SLOWDOWN = 4.0


def listed(constants: Constants) -> dict[str, dict[str, object]]:
    """Return every constant with its value and what it was fitted on."""
    return {
        field.name: {"value": getattr(constants, field.name), "fitted_on": FITTED_ON[field.name]}
        for field in fields(constants)
    }
