"""``python -m rankscope.cli``: the same as the installed program."""

from rankscope.cli.app import main

if __name__ == "__main__":
    main()
