"""Inspect mappings in a model: statistics of its attention, pictures, an HTML page."""

from sparse_attn.inspection.by_layer import LayerTensors
from sparse_attn.inspection.long_text import text_page
from sparse_attn.inspection.long_text.summing import sum_attention
from sparse_attn.inspection.page import attention_page
from sparse_attn.inspection.record import AttentionRecord, ZeroCounts
from sparse_attn.inspection.recording import record_attention
from sparse_attn.inspection.self_contained import write_page
from sparse_attn.inspection.slopes import learned_function, slope_statistics
from sparse_attn.kernels.sparse_rows import SparseRows

__all__ = [
    "AttentionRecord",
    "LayerTensors",
    "SparseRows",
    "ZeroCounts",
    "attention_page",
    "learned_function",
    "record_attention",
    "slope_statistics",
    "sum_attention",
    "text_page",
    "write_page",
]
