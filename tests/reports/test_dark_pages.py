"""Figures on dark pages, of reports and of the site, have the colours that their bars explain."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from sparse_attn.reports.page import Page, Plot
from website import ROOT


def heatmap() -> Figure:
    figure = Figure(figsize=(4, 3))
    figure.add_axes((0, 0, 1, 1)).imshow([[0, 100]], cmap="cividis", aspect="auto")
    return figure


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    report = Page("Title", [Plot("zeros", "Zeros", "By head.", heatmap())], overview=[])
    site = folder / "site.html"
    styles = (ROOT / "website/theme/assets/site.css").read_text(encoding="utf-8")
    site.write_text(
        f"<style>{styles}</style><body data-md-color-scheme=slate style='background: #1e2129'>"
        "<div class=md-typeset><img src=zeros.png></div>"
    )
    return {"report": report.write(folder).path, "site": site}


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("name", ["report", "site"])
def test_colours(name: str, width: int, browser: Any, pages: dict[str, Path]) -> None:
    size = {"width": width, "height": 900}
    page = browser.new_context(viewport=size, color_scheme="dark").new_page()
    page.goto(pages[name].as_uri())
    image = imread(BytesIO(page.locator("img").screenshot()))[..., :3]
    height, wide, _ = image.shape
    left, right = (image[height // 2, int(wide * at)] for at in (0.25, 0.75))
    np.testing.assert_allclose(left, [0, 0.135, 0.304], atol=0.01)  # the ends of cividis
    np.testing.assert_allclose(right, [0.995, 0.909, 0.217], atol=0.01)
