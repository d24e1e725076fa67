"""Scripts are run by the test beside them, not collected as modules with doctests."""

from pathlib import Path

collect_ignore = [
    path.name
    for path in Path(__file__).parent.glob("*.py")
    if not path.name.startswith(("test_", "conftest"))
]
