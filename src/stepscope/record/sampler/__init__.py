"""The sampling process, `python -m stepscope.record.sampler`; standard library only."""
