"""The arithmetic itself: two kernels compiled by numba, and numpy around them."""
