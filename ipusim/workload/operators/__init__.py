"""Operators: attributes, work and gradient, a file for each family; `graph` exports them."""
