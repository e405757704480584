"""How a program is run: configuration, host transfers, the step, power."""
