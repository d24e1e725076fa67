"""Ratios of running times, measured in one run on one thread. Absolute times are never reported."""
