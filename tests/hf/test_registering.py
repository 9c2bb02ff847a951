"""Patched models load, in whatever order and thread Transformers and this library are imported."""

import pytest

from tests.commands import python
from tests.marks import first

LOADS = """
import inspect, transformers.modeling_utils as module
assert module.PreTrainedModel.post_init.__code__.co_filename.endswith("saved.py")
assert "sparse_attn" in module.AttentionInterface()
assert type(module.__loader__).__module__.startswith(("_frozen", "importlib"))
assert module.__spec__.loader is module.__loader__
assert "class PreTrainedModel" in inspect.getsource(module)
"""
ORDERS = {
    "ours first, whose first import failed": """
import builtins, importlib.util, sparse_attn
assert importlib.util.find_spec("transformers.modeling_utils").origin
real, failures = builtins.__import__, [KeyboardInterrupt]
def once(name, *args, **kwargs):
    if sys._getframe(1).f_globals.get("__name__") == "transformers.modeling_utils" and failures:
        raise failures.pop()
    return real(name, *args, **kwargs)
builtins.__import__ = once
try:
    import transformers.modeling_utils
except KeyboardInterrupt:
    assert not failures
""",
    "theirs first": "import transformers.modeling_utils, sparse_attn",
    "two threads": """
import sparse_attn
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(2) as pool:
    theirs = pool.submit(lambda: __import__("transformers").PreTrainedModel)
    ours = pool.submit(lambda: sparse_attn.patch_model)
    assert theirs.result(200) and ours.result(200)
""",
}


@pytest.mark.parametrize("order", first(*ORDERS))
def test_patched_models_load(order):
    python("-c", f"import sys\n{ORDERS[order]}\n{LOADS}")
