"""What the site makes of a page and of a docstring."""

import pytest

from website import code, docstrings, pages

PAGE = """# Title

```python
x = 1
```

- in a list

    ```python
    with open("out.svg", "w") as file:
        file.write(str(x))
    ```

<!-- site: saved out.svg What it shows -->
"""


def test_pictures_that_a_page_saves() -> None:
    assert list(pages.pictures(PAGE, "guide/one.md")) == [("pictures/guide-one-out.svg", b"1")]
    filled = pages.fill(PAGE, "guide/one.md")
    assert filled.endswith("\n![What it shows](../pictures/guide-one-out.svg)\n")
    with pytest.raises(ValueError, match=r"other\.svg"):
        list(pages.pictures(PAGE.replace("saved out", "saved other"), "guide/one.md"))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        code.saved("1 / 0")


def test_code_in_a_docstring_is_left_alone() -> None:
    text = "Has a_b and `c_d`:\n\n    with e_f(*g):\n        h_i\n\nand j_k."
    expected = text.replace("a_b", r"a\_b").replace("j_k", r"j\_k")
    assert docstrings.plain(text) == expected
