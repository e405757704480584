"""What convolutions and matrix products share: from a plan to the supersteps of poplibs."""
