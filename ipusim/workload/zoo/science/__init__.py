"""Small networks of scientific applications."""
