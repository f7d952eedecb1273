"""What works with which release of IREE: `python -m tests.compat`, `make compat`."""
