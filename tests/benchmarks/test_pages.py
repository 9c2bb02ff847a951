"""What is counted of pages of keys."""

import pytest
import torch

from benchmarks.pages import ALPHAS, SIZES, bounds, shares


@pytest.mark.parametrize("size", SIZES)
def test_bounds(size):
    query, key = torch.randn(2, 5, 6), torch.randn(2, 128, 6)
    largest = (query @ key.mT).unflatten(-1, (-1, size)).amax(-1)
    found = bounds(query, key, size)
    for name, bound in found.items():
        assert bound.shape == largest.shape == (2, 5, 128 // size)
        assert (bound >= largest - 1e-5).all(), name
        assert (bound < largest + 40).all(), name
    assert (found["both"] <= found["box"]).all()
    assert (found["both"] <= found["ball"]).all()


@pytest.mark.parametrize("alpha", ALPHAS.values())
def test_no_page_with_a_support_is_left_out(alpha):
    """Where keys of a page are the same the bounds are exact, and so is the choice."""
    query, pages = 0.2 * torch.randn(2, 50, 6), torch.randn(2, 16, 6)
    found = shares(query, pages.repeat_interleave(8, 1), alpha)[8]
    assert 0.1 < found["support"] < 0.7
    assert [found[name] for name in ("box", "ball", "both")] == pytest.approx(
        [found["support"]] * 3, abs=2e-3
    )


def test_rows(bench, tmp_path):
    cases = {case["name"]: case["pages"] for case in bench("pages")["cases"]}
    assert list(cases) == list(ALPHAS)
    for pages in cases.values():
        assert list(pages) == [str(size) for size in SIZES]
        for page in pages.values():
            assert 0 < page["support"] < page["both"] <= min(page["box"], page["ball"]) <= 1
    box = cases["sparsemax"]["16"]["box"]
    assert f"| {box:.1%} | {box + 2 / 16:.1%} |" in (tmp_path / "pages-cpu.md").read_text()
