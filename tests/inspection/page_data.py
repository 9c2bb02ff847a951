"""Records by hand, and pages read back without the code that wrote them."""

import base64
import gzip
import json
import math
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import numpy
import torch
from torch import Tensor

from sparse_attn.inspection.by_layer import LayerTensors
from sparse_attn.inspection.long_text import STEP


@dataclass
class Record:
    """The attributes of an `AttentionRecord` that a page looks at."""

    weights: Any  # given as a list of tensors, with None where a layer did not run
    valid: list[Tensor | None] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)
    mappings: list[str] = field(default_factory=list)
    crosses: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = len(self.weights)
        self.valid = self.valid or [None] * count
        self.crosses = self.crosses or [False] * count
        self.layers = self.layers or [f"layer.{i}" for i in range(count)]
        self.mappings = self.mappings or ["sparsemax"] * count
        given, self.weights = self.weights, LayerTensors("weights", self.layers)
        for layer, weights in enumerate(given):
            if weights is not None:
                self.weights[layer] = weights


class Page(HTMLParser):
    """The tags of a page with their attributes, its script, style and title, and its data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {"script": "", "style": "", "title": "", "data": ""}
        self.open: str | None = None
        self.feed(text)
        self.close()
        self.data: dict[str, Any] = json.loads(self.texts["data"])

    @property
    def names(self) -> list[str]:
        """Of the sides."""
        return [side["name"] for side in self.data["sides"]]

    def p(self, side: int, layer: int) -> Tensor:
        """(H, Q, K), which the page holds in 16 bits a weight; NaN where a key is not allowed."""
        n = len(self.data["tokens"])
        held = self.data["sides"][side]["layers"][layer]
        codes = numbers(held["codes"], "<u2").view(-1, n, n)
        p = held["most"] * ((codes - 65535) * self.data["step"]).exp()
        return p.where(codes > 1, 0.0).where(codes > 0, math.nan)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        name = "data" if dict(attrs).get("id") == "data" else tag
        self.open = name if name in self.texts else None

    def handle_endtag(self, tag: str) -> None:
        self.open = None

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open] += data


def numbers(text: str, dtype: str) -> Tensor:
    """Base64 of numbers as float64."""
    raw = numpy.frombuffer(base64.b64decode(text), dtype=dtype)
    return torch.from_numpy(raw.astype("float64"))


def text_data(page: str) -> dict[str, Any]:
    """The data of the page of a long text."""
    found: dict[str, Any] = json.loads(re.findall(r'id="data">(.*?)</script>', page, re.S)[0])
    return found


def text_weights(page: str, place: int) -> Tensor:
    """The weights (N, N) of a view of the page of a long text, as its script decodes them."""
    data = text_data(page)
    count = len(data["tokens"])
    packed = re.findall(rf'id="view-{place}">(.*?)</script>', page)[0]
    held = numpy.frombuffer(gzip.decompress(base64.b64decode(packed)), "<u2").astype(float)
    lengths = held[:count].astype(int)
    differences, codes = numpy.split(held[count:], [lengths.sum()])
    made, ends = torch.zeros(count, count).double(), lengths.cumsum()
    for query, (end, length) in enumerate(zip(ends, lengths, strict=True)):
        row = slice(end - length, end)
        keys = differences[row].cumsum().astype(int)
        shades = numpy.exp((codes[row] - 65535) * STEP)
        made[query, keys] = torch.from_numpy(data["most"][place] * shades)
    return made
