"""The metal device: generated kernels on Apple silicon."""
