"""Programs of the cpu device as C: kernels printed from a plan, compiled by the system's compiler, run by a C driver.

Flow: `lowering` turns the steps of a phase into actions, `groups` and `printer` those that share a walk over rows into
kernels; `products`, `convolution`, `attention` and `indexed` have texts of their own. `batches` finds what may run at
the same time, `compiler` makes texts callable, `driver` runs lists of actions on its own threads.
"""
