"""Facts about the input model alone: data flow, origins, duplicates, idioms, scopes."""
