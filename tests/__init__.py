"""Tests: units and documents beside real compiles, runs and pages of the models in samples/."""
