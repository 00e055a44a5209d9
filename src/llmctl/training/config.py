"""What every training stage can set. `PretrainConfig`, `SftConfig` and the stages of RLHF derive from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from llmctl.config.schema import Opt
from llmctl.errors import UserError


@dataclass
class TrainingConfig:
    """Steps, batches, optimizer, precision, processes and checkpoints of a training run."""

    # -- length and batches
    steps: Annotated[int, Opt("Optimizer steps of the whole run.", min=1, aliases=("--max-steps",))] = 1000
    seq_len: Annotated[int, Opt("Tokens of one sequence.", min=1)] = 1024
    global_batch_size: Annotated[int, Opt("Sequences of one optimizer step, over all processes.", min=1)] = 32
    micro_batch_size: Annotated[
        int,
        Opt(
            "Sequences that one data-parallel replica works on at once; 0 takes the largest that divides, up to 8.",
            min=0,
            identity=False,
        ),
    ] = 0
    # -- learning rate
    lr: Annotated[float, Opt("Peak learning rate.", min=0)] = 3e-4
    lr_scaling: Annotated[
        Literal["none", "linear"],
        Opt("`linear` takes base_lr · global_batch_size / 256 as the peak; `none` takes `lr`."),
    ] = "none"
    base_lr: Annotated[float | None, Opt("Learning rate at a batch of 256, for `lr_scaling: linear`.", min=0)] = None
    lr_schedule: Annotated[
        Literal["warmup-constant-cosine", "cosine", "wsd", "constant"],
        Opt("Shape after the warm-up: constant then cosine; cosine at once; constant then linear; constant."),
    ] = "warmup-constant-cosine"
    warmup_fraction: Annotated[float, Opt("Share of the steps in which the learning rate rises.", min=0, max=1)] = 0.05
    decay_start_fraction: Annotated[
        float, Opt("Share of the steps after which the learning rate falls.", min=0, max=1)
    ] = 0.5
    min_lr_fraction: Annotated[float, Opt("Floor of the learning rate, as a share of the peak.", min=0, max=1)] = 0.1
    # -- optimizer
    optimizer: Annotated[Literal["adamw", "lamb", "sgd"], Opt("Update rule.")] = "adamw"
    weight_decay: Annotated[float, Opt("Decoupled weight decay of matrices (not of norms and biases).", min=0)] = 0.01
    beta1: Annotated[float, Opt("Decay of the first moment; momentum of SGD.", min=0, max=1)] = 0.9
    beta2: Annotated[float, Opt("Decay of the second moment.", min=0, max=1)] = 0.95
    adam_eps: Annotated[float, Opt("Added to the root of the second moment.", min=0)] = 1e-8
    max_grad_norm: Annotated[float, Opt("Gradients are scaled down to this norm; 0 leaves them.", min=0)] = 1.0
    # -- gradient monitor
    gradient_monitor: Annotated[
        Literal["absolute", "robust", "off"],
        Opt(
            "Past a limit of the gradient norm, clip to it and lower the learning rate: `absolute` takes "
            "gradient_limit, `robust` the median of the last norms + gradient_deviations deviations."
        ),
    ] = "absolute"
    gradient_limit: Annotated[float, Opt("Limit of the gradient norm for `absolute`.", min=0)] = 1e5
    gradient_deviations: Annotated[
        float, Opt("Deviations (1.4826 · median absolute deviation) over the median for `robust`.", min=0)
    ] = 10.0
    gradient_window: Annotated[int, Opt("Steps whose norms `robust` looks at.", min=20)] = 100
    gradient_lr_factor: Annotated[
        float, Opt("What the learning rate is multiplied by, for good, when the limit is passed.", min=0, max=1)
    ] = 0.8
    gradient_cooldown: Annotated[
        int, Opt("Steps after such a cut in which there is no further one (clipping goes on).", min=0)
    ] = 50
    # -- numbers
    seed: Annotated[int, Opt("Seed of initial weights, data order and dropout.", min=0)] = 0
    precision: Annotated[
        Literal["fp32", "bf16", "fp16", "fp64"], Opt("Arithmetic of forward and backward; master weights stay wider.")
    ] = "bf16"
    export_precision: Annotated[Literal["fp32", "bf16"], Opt("Type of the weights in `model/`.")] = "fp32"
    recompute: Annotated[
        Literal["none", "selective", "full"],
        Opt(
            "Activation checkpointing: `selective` computes the attention core again, `full` keeps each layer's input "
            "only.",
            identity=False,
        ),
    ] = "none"
    compile: Annotated[
        bool, Opt("Compile each layer with torch.compile (not under tensor parallelism).", identity=False)
    ] = False
    # -- processes
    device: Annotated[Literal["auto", "cpu", "cuda"], Opt("Where tensors live.", identity=False)] = "auto"
    processes: Annotated[
        int,
        Opt(
            "Processes on this host; 0 takes one per GPU, or what tp and pp need.",
            min=0,
            identity=False,
            aliases=("--nproc-per-node",),
        ),
    ] = 0
    nodes: Annotated[int, Opt("Hosts that train together.", min=1, identity=False, aliases=("--nnodes",))] = 1
    node_rank: Annotated[int, Opt("Number of this host, from 0.", min=0, identity=False)] = 0
    rendezvous: Annotated[
        str | None,
        Opt("HOST:PORT of host 0, reachable from every host.", identity=False, aliases=("--rdzv-endpoint",)),
    ] = None
    tp: Annotated[int, Opt("Tensor-parallel processes of a group.", min=1, identity=False)] = 1
    pp: Annotated[int, Opt("Pipeline stages.", min=1, identity=False)] = 1
    sequence_parallel: Annotated[
        bool,
        Opt(
            "Split norms, dropout and the residual stream along the sequence over the tensor-parallel group.",
            identity=False,
        ),
    ] = False
    schedule: Annotated[
        Literal["1f1b", "interleaved", "zb-h1", "zb-h2", "gpipe"],
        Opt("Pipeline schedule: one forward one backward, virtual stages in turn, zero bubble, GPipe.", identity=False),
    ] = "1f1b"
    virtual_stages: Annotated[
        int, Opt("Virtual stages of a process, for the interleaved schedule.", min=1, identity=False)
    ] = 1
    zero_stage: Annotated[
        int,
        Opt(
            "ZeRO: 1 splits optimizer state over data-parallel processes, 2 gradients, 3 weights.",
            min=0,
            max=3,
            identity=False,
        ),
    ] = 0
    engine: Annotated[
        Literal["auto", "native", "deepspeed"], Opt("What computes steps; `auto` says what it chose.", identity=False)
    ] = "auto"
    threads: Annotated[
        int,
        Opt(
            "CPU threads of each process; 0 takes OMP_NUM_THREADS, or divides the cores among the processes.",
            min=0,
            identity=False,
        ),
    ] = 0
    timeout_s: Annotated[
        float, Opt("Longest wait for another process before the run is given up.", min=1, identity=False)
    ] = 600.0
    hang_after_s: Annotated[
        float,
        Opt(
            "Seconds without a finished step, and ten times the slowest step, after which a run counts as hung and is "
            "ended with the stacks of all processes; 0 waits for timeout_s.",
            min=0,
            identity=False,
        ),
    ] = 30.0
    elastic: Annotated[
        bool,
        Opt(
            "When a process or a host is lost, start again from the last checkpoint with those that are left.",
            identity=False,
        ),
    ] = False
    max_restarts: Annotated[int, Opt("How often `elastic` starts again.", min=0, identity=False)] = 10
    replica_check_every: Annotated[
        int,
        Opt(
            "Updates between checks that parameters held by several processes are equal to the bit; 0 never checks.",
            min=0,
            identity=False,
        ),
    ] = 100
    # -- keeping
    checkpoint_every: Annotated[
        int,
        Opt(
            "Steps between checkpoints; 0 keeps one only when stopped by a signal and at the end.",
            min=0,
            identity=False,
        ),
    ] = 100
    async_checkpoints: Annotated[
        bool, Opt("Write checkpoints from a copy in memory while the training goes on.", identity=False)
    ] = True
    keep_checkpoints: Annotated[int, Opt("Checkpoints that are kept, the newest ones.", min=1, identity=False)] = 2
    log_every: Annotated[int, Opt("Steps between updates of the loss in the progress line.", min=1, identity=False)] = 1
    tensorboard: Annotated[bool, Opt("Write TensorBoard files.", identity=False)] = True
    resume_from: Annotated[
        str | None,
        Opt("Start from the newest checkpoint of another run's folder, or a checkpoint folder.", identity=False),
    ] = None

    @property
    def peak_lr(self) -> float:
        """Return the peak learning rate after scaling."""
        if self.lr_scaling == "linear":
            return (self.base_lr or 0.0) * self.global_batch_size / 256
        return self.lr

    def validate(self) -> None:
        """Check what spans fields.

        Raises:
            UserError: names the keys that do not go together.
        """
        if self.lr_scaling == "linear" and self.base_lr is None:
            raise UserError("`lr_scaling` is linear and `base_lr` is not given", "set base_lr, e.g. --base-lr 1e-4")
        if self.lr_scaling == "none" and self.base_lr is not None:
            raise UserError("`base_lr` is given and `lr_scaling` is none", "add --lr-scaling linear, or give --lr")
        if self.warmup_fraction > self.decay_start_fraction and self.lr_schedule in ("warmup-constant-cosine", "wsd"):
            raise UserError(
                f"the warm-up ends at {self.warmup_fraction:g} of the steps, after the decay begins "
                f"({self.decay_start_fraction:g})",
                "make warmup_fraction at most decay_start_fraction",
            )
        if (self.schedule == "interleaved") != (self.virtual_stages > 1):
            raise UserError(
                f"`schedule` {self.schedule} and `virtual_stages` {self.virtual_stages} do not go together",
                "use --schedule interleaved with --virtual-stages 2 or more, or neither",
            )
        if self.schedule != "1f1b" and self.pp == 1:
            raise UserError(
                f"`schedule` {self.schedule} orders the stages of a pipeline, and `pp` is 1", "add --pp 2 or more"
            )
        if self.sequence_parallel and self.tp == 1:
            raise UserError(
                "`sequence_parallel` splits what tensor parallelism leaves whole, and `tp` is 1", "add --tp 2 or more"
            )
        if self.sequence_parallel and self.seq_len % self.tp:
            raise UserError(
                f"`seq_len` {self.seq_len} cannot be split over tp {self.tp} for `sequence_parallel`",
                f"take --seq-len {max(1, self.seq_len // self.tp) * self.tp}",
            )
        if self.compile and self.tp > 1:
            raise UserError(
                "`compile` cannot look through the collectives of tensor parallelism", "use --tp 1, or leave --compile"
            )
        if self.node_rank >= self.nodes:
            raise UserError(
                f"`node_rank` {self.node_rank} is not below `nodes` {self.nodes}", "number the hosts from 0"
            )
        if self.nodes > 1 and not self.rendezvous:
            raise UserError(
                f"{self.nodes} hosts need a meeting point", "add --rendezvous HOST:PORT with a port of host 0"
            )
