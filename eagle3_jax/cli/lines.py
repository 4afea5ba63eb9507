"""Lines under a table: names and values, and notes."""

from rich.console import Console


def print_lines(console: Console, lines: dict[str, str], notes: tuple[str, ...]) -> None:
    """Names and values, one a line, and a draft's notes under them."""
    width = max(map(len, lines))
    for name, value in lines.items():
        # Soft-wrapped: a path stays whole, to be copied.
        console.print(f"{name:<{width}}  {value}", soft_wrap=True, markup=False)
    for note in notes:
        console.print(f"{'note':<{width}}  {note}", soft_wrap=True, markup=False)
