"""The browser of the tests of pages."""

from tests.inspection.conftest import browser

__all__ = ["browser"]
