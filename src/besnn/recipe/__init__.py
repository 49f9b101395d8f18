"""Recipes: validated descriptions of training runs, and the networks that they describe."""
