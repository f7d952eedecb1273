"""Build bundles of code that MLIR's own tools compile, without IREE."""
