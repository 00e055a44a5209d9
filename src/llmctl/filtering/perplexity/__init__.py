"""Perplexity of documents under an n-gram model that users train on text of their choice."""
