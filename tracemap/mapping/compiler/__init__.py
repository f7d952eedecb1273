"""Runs IREE's compiler, and finds its dumps: compilations, passes, the build for the simulator."""
