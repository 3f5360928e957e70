"""Operators of a profiled window: from raw Kineto events to rows of ops/."""
