"""Conversion of a pretrained model to a sparse mapping at little loss (`sparse_attn.convert`)."""
