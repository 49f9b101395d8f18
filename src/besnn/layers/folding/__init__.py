"""Folding: a trained batch ensemble as an equal network of plain layers, for fast inference."""
