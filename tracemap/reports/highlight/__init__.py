"""Source text to highlighted HTML, with tokens of MLIR."""
