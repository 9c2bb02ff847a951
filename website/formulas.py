"""Formulas of pages, `$...$` and `$$...$$`, as MathML, which browsers typeset without a script."""

from __future__ import annotations

import re
from html import unescape

from latex2mathml.converter import convert

# what pymdownx.arithmatex makes of a formula
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[]\s*(.*?)\s*\\[)\]]</\1>', re.DOTALL)
# latex2mathml puts no space after it
_LOG = re.compile(r"<mi>log</mi>(?!<mo stretchy)")


def typeset(html: str) -> str:
    """Return the HTML of a page with MathML in place of LaTeX.

    Raises:
        ValueError: an unknown command.
    """
    return _FORMULA.sub(_mathml, html)


def _mathml(formula: re.Match[str]) -> str:
    tag, latex = formula[1], unescape(formula[2])
    made = convert(latex, display="inline" if tag == "span" else "block")
    if "\\" in made:
        raise ValueError(f"${latex}$: expected commands that latex2mathml knows")
    made = _LOG.sub(r'\g<0><mspace width="0.17em"/>', made)
    # a wide formula scrolls
    return made if tag == "span" else f'<div class="formula">{made}</div>'
