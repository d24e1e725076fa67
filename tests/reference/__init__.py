"""Slow, obvious implementations that import nothing of rankscope."""
