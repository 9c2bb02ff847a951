"""Every contact with Transformers."""

# before any module here, because its import adds our checks (`sparse_attn.registering`)
import transformers.modeling_utils  # noqa: F401
