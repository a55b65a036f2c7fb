"""The cpu device: C kernels and a NumPy interpreter over a plan; the interpreter is the oracle of every device."""
