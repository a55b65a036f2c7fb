"""The cpu device: C kernels and the NumPy interpreter over a plan; the interpreter is the oracle of every other device."""
