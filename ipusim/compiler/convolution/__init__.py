"""The planner of convolutions and products; its kernels work on the records of `record`."""
