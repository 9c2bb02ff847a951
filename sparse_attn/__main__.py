"""`python -m sparse_attn`; see `sparse_attn.cli`."""

import os
import sys

from sparse_attn.cli import main


def command() -> None:
    """What `sparse-attn` on PATH calls."""
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:
        # `head` has read enough; Python would flush once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    command()
