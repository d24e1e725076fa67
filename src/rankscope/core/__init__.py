"""Vocabulary and numerics that every row above shares. Importing this package does not import torch."""
