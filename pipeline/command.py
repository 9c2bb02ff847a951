"""What every command line does with what its user can put right."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

# modules that an extra of this project installs
EXTRAS = {"ray": "ray", "statsmodels": "report", "jinja2": "report", "matplotlib": "report"}


@contextmanager
def input_errors() -> Iterator[None]:
    """One line instead of a traceback for wrong input or an extra that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        sys.exit(f"error: {error.name} is not installed; pip install '.[{EXTRAS[error.name]}]'")
    except (ValueError, TypeError, OSError) as error:
        sys.exit(f"error: {error}")
