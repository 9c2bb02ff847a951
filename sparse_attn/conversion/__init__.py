"""A pretrained model made sparse at little loss, which `sparse_attn.convert` does."""
