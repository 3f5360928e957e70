"""Times of single kernels of a training step on this device, forward and backward, and how well they use it."""
