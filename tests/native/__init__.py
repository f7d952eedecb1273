"""Native code: bundles made with MLIR's own tools, and programs that run without IREE."""
