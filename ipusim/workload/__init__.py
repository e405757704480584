"""What is to be computed: operator graphs from ONNX files and from a zoo of known networks."""
