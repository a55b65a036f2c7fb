"""The cpu device: the NumPy interpreter over a plan. Always there, and the oracle of every other device."""
