"""Not written yet."""


def register(app) -> None:
    """Add the command (not written yet)."""
