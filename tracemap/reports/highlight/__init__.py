"""Source text to highlighted HTML, with a lexer for MLIR."""
