"""Models of all tasks with what is needed to use them: in memory, in one file, and as ONNX."""
