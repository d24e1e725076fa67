"""The two papers: their claims, their figures, and the tasks that networks are trained on. Stands above ``studies``."""
