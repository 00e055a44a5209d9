"""Linear classifiers of documents that users train: examples in, probabilities out."""
