"""Programs of other tools handed in as they are: a function of JAX, a program of torch, a model of ONNX.

A file per framework, which is imported only when a program of it is handed in; each makes an `Imported` of it.
"""
