"""Plants with truth that share nothing with the estimator: its other benchmark is written by those who build it."""
