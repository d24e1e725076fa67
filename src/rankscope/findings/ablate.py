"""``rankscope ablate``: what keeps the tokens of a model apart, its skips, its MLPs, its norms or its mask."""
