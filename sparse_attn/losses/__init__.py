"""Losses of rows of scores with one or several labels, `f(scores, target, ...)`."""

from sparse_attn.losses.bouchard import bouchard_bound, bouchard_loss
from sparse_attn.losses.dense import mapping_loss, mapping_nll, squared_error
from sparse_attn.losses.fenchel_young import entmax_loss, sparsemax_loss
from sparse_attn.losses.multilabel import (
    label_count_loss,
    r_softmax_multilabel_loss,
    sparsegen_hinge_loss,
    sparsehourglass_loss,
    t_softmax_multilabel_loss,
)

__all__ = [
    "bouchard_bound",
    "bouchard_loss",
    "entmax_loss",
    "label_count_loss",
    "mapping_loss",
    "mapping_nll",
    "r_softmax_multilabel_loss",
    "sparsegen_hinge_loss",
    "sparsehourglass_loss",
    "sparsemax_loss",
    "squared_error",
    "t_softmax_multilabel_loss",
]
