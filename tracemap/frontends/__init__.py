"""Import of programs from frameworks: JAX functions, torch programs, ONNX models.

There is a module per framework, loaded only when needed, which converts a program to an `Imported`.
"""
