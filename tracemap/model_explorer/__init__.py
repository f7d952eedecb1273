"""An adapter that lets Model Explorer open bundles.

    model-explorer model.tracemap --extensions=tracemap.model_explorer

Model Explorer imports the module `main` of this package; nothing else does.
"""
