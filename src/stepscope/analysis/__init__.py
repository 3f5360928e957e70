"""Reads runs, anywhere: functions of a Run that give Polars frames; no torch."""
