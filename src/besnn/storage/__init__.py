"""Files: written whole or not at all, tensors with a checked header, and the model file."""
