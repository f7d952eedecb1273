"""Phase dumps of iree-compile and input models, read with `iree.compiler.ir` into typed records."""
