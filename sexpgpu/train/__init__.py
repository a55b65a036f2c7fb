"""Training: phases, step, loop, state, checkpoints, metrics, generation and evaluation."""
