"""One file per command: what is asked, what was found, what is said of it, shown and drawn. No torch.

``asked`` holds the options that commands share, ``base`` what every finding is, ``blocks`` views over the table that
several pages show.
"""
