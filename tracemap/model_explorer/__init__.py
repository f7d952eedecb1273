"""An adapter by which Model Explorer opens bundles.

    model-explorer model.tracemap --extensions=tracemap.model_explorer

Model Explorer imports the module `main` of what `--extensions` names; nothing else does.
"""
