"""TAMU's scaling paper."""
