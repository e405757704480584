"""GPUs beside the IPU: kernels, stacks, a step."""
