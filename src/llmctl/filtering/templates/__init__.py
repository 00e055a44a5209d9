"""Find template content: documents with one skeleton and varying slots."""
