"""``python -m rankscope`` is the command ``rankscope``, also where its script is not on the path."""

from rankscope.cli import main

if __name__ == "__main__":
    main()
