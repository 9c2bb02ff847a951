"""Every contact with Transformers."""

# before any module here, because its import imports ours (`sparse_attn.registering`)
import transformers.modeling_utils  # noqa: F401
