"""The setting of one axis (batch, threads, precision, power mode) that is best for speed, energy, or reaching a loss."""
