"""What the kernel for Hugging Face's hub refuses."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from release.kernel import flash_attn_forward
from tests.bad_input import Wrong

ROWS_OF = torch.randn(1, 2, 5, 8)


def call(implementation: str, **options: Any) -> Any:
    module: Any = SimpleNamespace(config=SimpleNamespace(_attn_implementation=implementation))

    def forward(_: Path) -> Any:
        return flash_attn_forward(module, ROWS_OF, ROWS_OF, ROWS_OF, None, **options)

    return forward


ROWS = [
    *(
        Wrong(
            f"hub kernel {name!r}",
            call(name),
            ValueError,
            f"attn_implementation='{name}': expected a mapping after the colon, and "
            "PARAMETER=NUMBER after each comma, each parameter once, such as",
        )
        for name in (
            *("org/repo", "org/repo:r-softmax,0.3", "org/repo:r-softmax,r=high"),
            *("org/repo:entmax,alpha=1.2.3", "org/repo:r-softmax,r=.5,r=.1"),
        )
    ),
    *(
        Wrong(
            f"hub kernel {name!r}",
            call(name),
            ValueError,
            f"attn_implementation='{name}': .* {reason}.*; use patch_model of the library",
        )
        for name, reason in (
            ("o/r:monotone", "learns parameters"),
            ("o/r:plif,knots=12", "learns parameters"),
            ("o/r:weighted-softmax,weights=2", "takes a weight for each key"),
        )
    ),
    Wrong("hub kernel of no mapping", call("o/r:entmxa"), ValueError, "did you mean entmax?"),
    Wrong(
        "hub kernel of packed sequences",
        call("o/r:sparsemax", cu_seq_lens_q=torch.tensor([0, 5])),
        NotImplementedError,
        "passes cu_seq_lens_q, which this kernel does not take; use the library",
    ),
]
