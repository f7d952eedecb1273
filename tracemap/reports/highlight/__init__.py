"""Source text in tokens of Pygments: a lexer of MLIR, and the colours that pages and terminals give to tokens."""
