"""Trainings of one workload in several settings, each in a process of its own, and what they cost."""
