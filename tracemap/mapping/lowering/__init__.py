"""What pass pipelines make of a model: the loops of each stage, the ops that work there, and those that are gone."""
