"""What was measured: the model of a run (`model`) and one module per file format. Knows no IR and no graph."""
