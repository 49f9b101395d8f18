"""Files: written whole or not at all, and tensors with a checked header, as in the model file."""
