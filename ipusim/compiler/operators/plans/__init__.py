"""Operators that poplibs plans by itself, beside convolutions and products: how each is split."""
