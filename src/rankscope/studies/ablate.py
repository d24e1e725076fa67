"""Ablation: one model without skips, MLPs or norms, with other masks and skip scales, side by side."""
