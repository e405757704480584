"""Networks on images."""
