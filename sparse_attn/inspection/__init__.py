"""Inspect mappings in a model: statistics of its attention, pictures, an HTML page."""

from sparse_attn.inspection.page import attention_page, write_page
from sparse_attn.inspection.record import AttentionRecord, ZeroCounts
from sparse_attn.inspection.recording import record_attention
from sparse_attn.kernels.rows import SparseRows
from sparse_attn.inspection.slopes import learned_function, slope_statistics

__all__ = [
    "AttentionRecord",
    "SparseRows",
    "ZeroCounts",
    "attention_page",
    "learned_function",
    "record_attention",
    "slope_statistics",
    "write_page",
]
