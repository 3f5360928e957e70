"""Reads run folders and computes what reports draw, without torch."""
