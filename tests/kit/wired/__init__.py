"""Small models as people write them by hand, each in a file of its own: ``build()``, ``batch()`` and often ``loss()``.

Tests change a line or two of a file and look whether the change is found, with its block and its line.
"""
