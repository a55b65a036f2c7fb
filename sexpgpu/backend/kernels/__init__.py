"""Text of GPU kernels: one or a few for each step of a plan, printed from work shapes and layouts."""
