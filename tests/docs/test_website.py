"""What the site makes of a page and of a docstring."""

import re

import pytest
import yaml

from website import code, docstrings, pages, places, results, sentence

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


def test_python_keeps_the_lines_of_the_page() -> None:
    lines = code.python(PAGE).split("\n")
    assert lines[3] == "x = 1"
    assert lines[9] == 'with open("out.svg", "w") as file:'


def test_saved_pictures() -> None:
    assert list(pages.pictures(PAGE, "guide/one.md")) == [("pictures/guide-one-out.svg", b"1")]
    filled = pages.fill(PAGE, "guide/one.md")
    assert filled.endswith("\n![What it shows](../pictures/guide-one-out.svg)\n")
    with pytest.raises(ValueError, match=r"other\.svg.*out\.svg"):
        list(pages.pictures(PAGE.replace("saved out", "saved other"), "guide/one.md"))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        code.saved("1 / 0")


@pytest.mark.parametrize("marker", ["nonsense", "curve softmax"])
def test_unknown_markers(marker: str) -> None:
    with pytest.raises(ValueError, match="unknown marker"):
        pages.fill(f"<!-- site: {marker} -->", "one.md")


def test_unknown_tables() -> None:
    with pytest.raises(ValueError, match="'nonsense': expected one of machines, glue"):
        results.table("nonsense")


def test_code_in_a_docstring_is_left_alone() -> None:
    text = "Has a_b and `c_d`:\n\n    with e_f(*g):\n        h_i\n\nand j_k."
    expected = text.replace("a_b", r"a\_b").replace("j_k", r"j\_k")
    assert docstrings.plain(text) == expected


def test_results_tell_of_every_folder_of_runs() -> None:
    folders = {
        path.parent.relative_to(results.ROOT).as_posix().removesuffix("/runs").replace("_", r"\_")
        for path in (results.ROOT / "results").rglob("*.json*")
        if "benchmarks" not in path.parts and path.name != "sweep.json"
    }
    assert {
        line.split(" | ")[0][2:] for line in results.table("machines").split("\n")[2:]
    } == folders


def test_families_have_a_line_each() -> None:
    lines = results.table("families").split("\n")
    assert lines[0].startswith("Transformers ")
    assert sum(line.startswith("| ") for line in lines) > 600
    assert any(line.startswith("| bert | accepted: BertModel, ") for line in lines)
    assert any("| refused: NllbMoeModel" in line for line in lines)


@pytest.mark.parametrize(
    ("source", "link", "expected"),
    [
        (
            "docs/kernels.md",
            "../results/benchmarks/attention-cpu.md",
            "results/benchmarks/attention-cpu.md",
        ),
        ("docs/guide/a.md", "../heads.md#plif", "../heads.md#plif"),
        ("docs/language-models.md", "../results/language_modeling/ptb-small", "results.md"),
        ("docs/api/heads.md", "../../CONTRIBUTING.md", "../contributing.md"),
        ("CONTRIBUTING.md", "docs/architecture.md", "architecture.md"),
        ("CHANGELOG.md", "https://example.org/docs/a.md", "https://example.org/docs/a.md"),
    ],
)
def test_links(source: str, link: str, expected: str) -> None:
    assert places.relink(f"[x]({link})", source) == f"[x]({expected})"


def test_docstrings_are_plain_text() -> None:
    text = "|y|_1 of <p, z> [heads] * 2, `a * <b>` & ```\nx[_i_]\n```\nSource: A 2020."
    assert docstrings.plain(text) == (
        r"|y|\_1 of &lt;p, z> \[heads\] \* 2, `a * <b>` &amp; "
        "```\nx[_i_]\n```\n\nSource: A 2020."
    )


def test_the_sentence_is_what_the_model_makes_of_it() -> None:
    """By its words and what is struck out; shades may round otherwise elsewhere."""
    made, committed = sentence.draw(*sentence.attention()), sentence.PATH.read_text("utf-8")
    words = re.compile(r'class="(word|dropped)".*>(.+)</text>')
    assert words.findall(made) == words.findall(committed)
    assert ("dropped", "because") in words.findall(made)
    assert re.sub(r"[.\d]+", "", made) == re.sub(r"[.\d]+", "", committed)


def typeset(markdown: str) -> str:
    """The HTML of a page."""
    converter = pytest.importorskip("markdown", reason="the site needs pip install '.[docs]'")
    pytest.importorskip("latex2mathml", reason="the site needs pip install '.[docs]'")
    from website import formulas

    options = yaml.safe_load((results.ROOT / "mkdocs.yml").read_text())["markdown_extensions"]
    (arithmatex,) = (name for name in options if "pymdownx.arithmatex" in name)
    html = converter.markdown(
        markdown, extensions=["tables", *arithmatex], extension_configs=arithmatex
    )
    return formulas.typeset(html)


def test_formulas_become_mathml() -> None:
    inline = typeset(r"| a |" "\n| --- |\n" r"| for $r \lt 1$ and `$x` |")
    assert re.search(r"<td>for <math [^>]*display=\"inline\">.*<mo>&#x0003C;</mo>.*</math>", inline)
    assert inline.count("<math") == 1
    block = typeset("$$p_i = 1$$")
    assert block.startswith('<div class="formula"><math ')
    assert 'display="block"><mrow><msub><mi>p</mi><mi>i</mi></msub>' in block
    with pytest.raises(ValueError, match=r"\\sofmax.*: expected commands that latex2mathml knows"):
        typeset(r"$\sofmax z$")


def groups(nav: list[dict[str, str | list]], name: str = "") -> dict[str, int]:
    """The number of pages directly in each group of the navigation."""
    found = {name: 0}
    for entry in nav:
        ((title, inside),) = entry.items()
        if isinstance(inside, list):
            found |= groups(inside, title)
        else:
            found[name] += 1
    return found


def test_groups_of_the_guide_are_short() -> None:
    nav = yaml.safe_load((results.ROOT / "mkdocs.yml").read_text())["nav"]
    pages_in = groups(nav)
    guide = ("Use", "Understand", "Experiments", "Extend", "Reference", "API")
    assert {name: pages_in[name] for name in guide if pages_in[name] > 6} == {}
