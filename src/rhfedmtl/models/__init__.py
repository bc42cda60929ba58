"""Models of all tasks: use, certification, release with noise, and files (own format and ONNX)."""
