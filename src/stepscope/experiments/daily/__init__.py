"""Training on a few new images every day: accuracy, time and energy by day, with and without replay of older ones."""
