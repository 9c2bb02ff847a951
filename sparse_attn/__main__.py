"""`python -m sparse_attn`; see `sparse_attn.cli`."""

import os
import sys

from sparse_attn.cli import main


def command() -> None:
    """Entry point of the `sparse-attn` command."""
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader, such as `head`, has gone; Python would flush once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    command()
