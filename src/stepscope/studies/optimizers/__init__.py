"""What each optimizer costs for one workload: memory of its state, time and energy of a step, steps to a loss."""
