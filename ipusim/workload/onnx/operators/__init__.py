"""What runs of an ONNX file, node by node, as operators of the graph."""
