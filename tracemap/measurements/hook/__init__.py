"""The record files of the hook: their head, processes, calls, samples, and what is made of calls."""
