"""llmctl: from raw text to an aligned language model, one command a stage."""

__version__ = "0.1.0"
