"""Export of a detector as one graph, for ONNX Runtime or `torch.export`."""
