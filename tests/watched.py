"""A page in Chromium, for the tests of pages that are one file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def watched(browser: Any, html: Path, **options: Any) -> Iterator[Any]:
    """Yield the open page, which may report nothing and ask for no other file.

    Args:
        options: of the context, such as `viewport` and `color_scheme`.
    """
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(10_000)
    reports: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: reports.append(message.text))
    page.on("pageerror", lambda error: reports.append(str(error)))
    page.on("dialog", lambda dialog: reports.append(dialog.message))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(html.as_uri())
    yield page
    context.close()
    assert reports == []
    assert [url for url in requests if not url.startswith(("data:", "blob:"))] == [html.as_uri()]
