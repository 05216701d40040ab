"""Exported models: the graphs that ONNX Runtime runs, how they are made, and a translator that needs no PyTorch.

`onnx_translator` imports nothing of the package; all else is for the export.
"""
