"""A model loaded phase by phase from Streaming Memory."""
