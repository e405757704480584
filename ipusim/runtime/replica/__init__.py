"""One copy of a model on its chips."""
