"""The cuda device: generated kernels, cuBLASLt products, cuDNN attention, and phases replayed as CUDA graphs."""
