"""Draw what a read of a flip-flop text attends to, in models that `train` has left in folders.

python -m experiments.length.read runs/length/softmax runs/length/entmax --output read.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from transformers import AutoModelForCausalLM

from experiments.length.flip_flop import READ, WRITE, flip_flop
from sparse_attn.inspection import record_attention
from sparse_attn.reports import canvas

TEXTS, LENGTH = 100, 4096
FAR = 32  # tokens: out of reach of a window


def draw(folders: list[Path]) -> Figure:
    """Draw the last read of the first of TEXTS texts where no bit to copy stands near it.

    The last write has the bit, and so has every read after it. The head, of all in layers without
    positions, is the one with most weight on the last of these.
    """
    tokens, _ = flip_flop(TEXTS, LENGTH, 5, torch.Generator().manual_seed(0))
    text, answer, known = tokens[:, :-1], tokens[:, -1], LENGTH - 2 - FAR
    has_bit = (text == WRITE) | (text == READ)
    place = int(((~has_bit[:, known:-1]).all(1)).nonzero()[0])
    text, answer = text[place], answer[place]
    written = has_bit[place, :-1].nonzero().max() + torch.arange(2)
    figure, panels = canvas.panels([folder.name for folder in folders], 1.5, 1)
    for folder, axes in zip(folders, panels, strict=True):
        model = AutoModelForCausalLM.from_pretrained(folder / "model").eval()
        with record_attention(model, weights=True) as record, torch.no_grad():
            is_right = model(text[None]).logits[0, -1].argmax() == answer
        heads = torch.cat([record.weights[i][0, :, -1] for i in range(1, len(record.weights), 2)])
        read = heads[heads[:, written].sum(1).argmax()]
        keys = read.nonzero().flatten()
        found = f"{len(keys):,} of {len(read):,} weights are above zero"
        axes.set_title(f"{folder.name}, {'right' if is_right else 'wrong'}: {found}")
        axes.scatter(len(read) - keys, read[keys], s=5, color=canvas.GREY)
        axes.scatter(len(read) - written, read[written], s=30, color="#D55E00")
        axes.set(xscale="log", xlim=(LENGTH, 0.9), ylim=(0, None), ylabel="weight")
        axes.set_xticks([1000, 100, 10, 1], ["1,000", "100", "10", "1"])
    panels[-1].set_xlabel("tokens before the answer; orange: where its bit stands last")
    return figure


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description="Draw what a read of a flip-flop text attends to.")
    parser.add_argument("folders", nargs="+", type=Path, help="output_dir of a run")
    parser.add_argument("--output", type=Path, default=Path("read.png"))
    options = parser.parse_args()
    canvas.save(draw(options.folders), options.output)


if __name__ == "__main__":
    main()
