"""Model card of a converted model: what was replaced and measured, and how to load it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from sparse_attn.comparison.page import notes, provenance, share, table
from sparse_attn.comparison.reader import class_with_head
from sparse_attn.conversion.page import layers
from sparse_attn.hf.loading import read_config
from sparse_attn.hf.opening import PACKAGE_SCHEME, split_gguf
from sparse_attn.mappings.syntax import parts_of
from sparse_attn.reports.page import Block, Bullets, Heading, Page
from sparse_attn.system.files import write_text

LOAD = """
## Load it

```python
import sparse_attn  # before from_pretrained, which would not know the attention
from transformers import {cls}, AutoTokenizer

path = "FOLDER"  # this folder, or its id on the hub
model = {cls}.from_pretrained(path)
tokenizer = AutoTokenizer.from_pretrained(path)
```

Do not pass `attn_implementation="eager"`, which computes softmax.
"""


def write_card(folder: Path, model: str, record: dict[str, Any], **arguments: Any) -> None:
    """Write README.md into the folder of a saved model, unless it has one.

    Args:
        model: the model that was converted, as the user named it.
        **arguments: arguments of `read_config`.
    """
    path = folder / "README.md"
    if path.exists():
        return
    name, _ = split_gguf(model)
    is_hub = not Path(name).exists() and not name.startswith(PACKAGE_SCHEME)
    mapping, _ = parts_of(record["recipe"]["mapping"])
    tags = ["sparse-attn", "sparse-attention", mapping]
    base = name if is_hub else None
    head = ModelCardData(library_name="transformers", base_model=base, tags=tags)
    load = LOAD.format(cls=class_with_head(read_config(folder, **arguments)).__name__)
    write_text(path, f"---\n{head.to_yaml()}\n---\n\n{_page(record).markdown()}{load}")


def _page(record: dict[str, Any]) -> Page:
    """Build the text above the code."""
    recipe, final = record["recipe"], record["mappings"][-1]
    training = (
        f"Then it was trained for {recipe['steps']} steps on {recipe['number']:,} unlabelled texts "
        f"of {recipe['texts']}, to give what it gave with softmax."
        if recipe["steps"]
        else "It was not trained after that."
    )
    intro = (
        f"This is {record['model']} with {recipe['mapping']} in place of softmax in its attention. "
        f"{training} On the texts below, {share(final['zeros'])} of its attention weights are "
        "exactly zero. Texts of another length or kind have more or fewer."
    )
    shown = layers(record)
    blocks: list[Block] = [
        intro,
        Heading("Results"),
        table(record),
        Bullets([*notes(record), *provenance(record)]),
        Heading("Parameters"),
        shown.columns(0, -3, -2, caption=shown.caption),
    ]
    return Page(f"{record['model']} with {recipe['mapping']}", blocks, overview=[])
