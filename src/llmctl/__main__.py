"""``python -m llmctl`` and the console script ``llmctl``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its status."""
    from llmctl.cli.app import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
