"""The setting of one axis (batch, threads, precision) that is best for speed, energy, or reaching a loss."""
