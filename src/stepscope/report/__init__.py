"""Draws what analysis computed; computes nothing."""
