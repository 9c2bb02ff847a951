"""Our heads in models of Transformers."""

from sparse_attn.hf.heads.lm import patch_lm_head, unpatch_lm_head
from sparse_attn.hf.heads.multilabel import patch_multilabel_head, unpatch_multilabel_head

__all__ = [
    "patch_lm_head",
    "patch_multilabel_head",
    "unpatch_lm_head",
    "unpatch_multilabel_head",
]
