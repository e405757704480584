"""BraggNN for real: synthetic diffraction peaks, and training in the arithmetic of an IPU."""
