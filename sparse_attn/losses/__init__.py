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
from sparse_attn.mappings import get_spec

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

# the default first; the mappings cannot import their losses, which import them
get_spec("sparsemax").losses.update(
    {"sparsemax": sparsemax_loss, "sparsegen-hinge": sparsegen_hinge_loss}
)
get_spec("sparsegen").losses["sparsegen-hinge"] = sparsegen_hinge_loss
get_spec("sparsehourglass").losses["sparsehourglass"] = sparsehourglass_loss
get_spec("entmax").losses["entmax"] = entmax_loss
get_spec("t-softmax").losses["r-softmax"] = t_softmax_multilabel_loss
get_spec("r-softmax").losses["r-softmax"] = r_softmax_multilabel_loss
