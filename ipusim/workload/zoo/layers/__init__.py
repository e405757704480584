"""Layers that several networks of the zoo share."""
