"""Group documents of one kind by density, so that a kind can be dropped as a whole."""
