"""Pictures of records, of one sentence's attention, and of mappings, as matplotlib figures.

Each function creates its `Figure` without pyplot's state, so nothing opens or stays open:
`figure.savefig("zeros.png", dpi=150)`. SVG files hold text as text, and PDF files Type 42 fonts. A
figure of one panel is 6.4 inches wide and can be read on a phone.

Needs matplotlib: `pip install 'sparse-attn[plots]'`.
"""

# first, because its error says how to install a missing matplotlib
from sparse_attn.inspection import plot_style as plot_style  # isort: skip
from sparse_attn.inspection.pictures.mappings import draw_curves, draw_simplex
from sparse_attn.inspection.pictures.records import draw_parameters, draw_sparsity, draw_support
from sparse_attn.inspection.pictures.weights import draw_attention, draw_weights

__all__ = [
    "draw_attention",
    "draw_curves",
    "draw_parameters",
    "draw_simplex",
    "draw_sparsity",
    "draw_support",
    "draw_weights",
]
