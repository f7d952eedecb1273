"""Measurements that other tools print or export, read as they are: a file becomes events and a header of a run."""
