"""What is kept: the trace graph of a model (`model`), questions to it (`query`), and the bundle on disk (`bundle`)."""
