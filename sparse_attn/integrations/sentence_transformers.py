"""The class that older folders of sentence-transformers name for a patched model."""

from sentence_transformers.base.modules import Transformer as PatchedTransformer

__all__ = ["PatchedTransformer"]
