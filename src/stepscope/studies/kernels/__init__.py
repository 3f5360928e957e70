"""How long single kernels of a training step take on this device, forward and backward, and how well they use it."""
