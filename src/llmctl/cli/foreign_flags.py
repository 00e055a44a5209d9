"""Long flags of other tools, and what they are called here; used in hints only."""

from __future__ import annotations

FOREIGN_FLAGS = {
    # Megatron-LM
    "--tensor-model-parallel-size": "--tp",
    "--pipeline-model-parallel-size": "--pp",
    "--train-iters": "--steps",
    "--num-layers": "--set model.num_layers=N",
    "--hidden-size": "--set model.hidden_size=N",
    "--num-attention-heads": "--set model.num_heads=N",
    "--ffn-hidden-size": "--set model.ffn_hidden_size=N",
    "--num-query-groups": "--set model.num_kv_heads=N",
    "--seq-length": "--seq-len",
    "--clip-grad": "--max-grad-norm",
    "--lr-warmup-fraction": "--warmup-fraction",
    # Hugging Face Trainer and TRL
    "--per_device_train_batch_size": "--micro-batch-size",
    "--per-device-train-batch-size": "--micro-batch-size",
    "--gradient_accumulation_steps": "--global-batch-size",
    "--gradient-accumulation-steps": "--global-batch-size",
    "--learning_rate": "--lr",
    "--learning-rate": "--lr",
    "--max_steps": "--steps",
    "--output_dir": "OUTPUT (the second argument)",
    "--output-dir": "OUTPUT (the second argument)",
    # datatrove and others
    "--input": "SOURCE (the first argument)",
    "--output": "OUTPUT (the second argument)",
    "--num-workers": "--workers",
    "--jobs": "--workers",
    "--tasks": "--workers",
    "--resume": "(a run resumes by itself: give the same command again)",
    "--force": "--overwrite",
}
