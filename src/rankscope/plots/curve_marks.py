"""Notes below the title of a figure, broken into lines."""

from rankscope.plots.style import LETTER_WIDTH


def lines_of(notes: list[str], width: int) -> list[str]:
    """The notes with dots between them, broken into lines that fit so many pixels where possible."""
    letters = int(width / LETTER_WIDTH)
    lines: list[str] = []
    for note in notes:
        joined = f"{lines[-1]} · {note}" if lines else note
        if lines and len(joined) <= letters:
            lines[-1] = joined
        else:
            lines.append(note)
    return lines
