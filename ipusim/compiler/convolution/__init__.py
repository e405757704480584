"""The planner of convolutions and matrix multiplies."""
