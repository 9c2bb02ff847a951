"""The checks are in Transformers' classes, in whatever order and thread it is imported."""

import pytest

from tests.commands import python
from tests.marks import first

GUARDED = """
from transformers import PreTrainedModel
assert "sparse_attn.hf.plain_loading" in sys.modules
wrapper = PreTrainedModel.from_pretrained.__func__
assert wrapper.__code__.co_filename.endswith("plain_loading.py")
from transformers import AttentionInterface
assert "sparse_attn" in AttentionInterface()
"""
ORDERS = {
    "ours first": "import sparse_attn",
    "theirs first": "import transformers.modeling_utils; import sparse_attn",
    "their configs first": "import transformers.configuration_utils; import sparse_attn",
    "looked up before": """
import sparse_attn, importlib.util
assert importlib.util.find_spec("transformers.modeling_utils").origin
""",
    "after an import that failed": """
import builtins, sparse_attn
real, failures = builtins.__import__, [KeyboardInterrupt]
def once(name, *args, **kwargs):
    caller = sys._getframe(1).f_globals.get("__name__")
    if caller == "transformers.modeling_utils" and failures:
        raise failures.pop()
    return real(name, *args, **kwargs)
builtins.__import__ = once
try:
    import transformers.modeling_utils
except KeyboardInterrupt:
    pass
assert not failures
""",
    "two threads": """
import threading, sparse_attn
def theirs():
    from transformers import PreTrainedModel
def ours():
    sparse_attn.patch_model
threads = [threading.Thread(target=each, daemon=True) for each in (theirs, ours)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(200)
    assert not thread.is_alive()
""",
}


@pytest.mark.parametrize("order", first(*ORDERS))
def test_the_checks_are_added(order):
    python("-c", f"import sys\n{ORDERS[order]}\n{GUARDED}")


@pytest.mark.slow
def test_a_config_without_a_model_keeps_its_guard(tmp_path):
    program = f"""
import json, sys
import sparse_attn
from transformers import BertConfig
assert BertConfig.to_dict.__doc__
config = BertConfig(sparse_attn={{"version": 1, "mappings": []}}, attn_implementation="sparse_attn")
assert "sparse_attn.hf.plain_loading" not in sys.modules
config.save_pretrained({str(tmp_path)!r})
print(json.load(open({str(tmp_path / "config.json")!r}))["attn_implementation"])
"""
    assert python("-c", program).strip() == "sparse_attn"


@pytest.mark.slow
def test_the_loader_is_transformers_own():
    program = """
import inspect, sys, sparse_attn, transformers.modeling_utils as module
assert type(module.__loader__).__module__.startswith(("_frozen", "importlib"))
assert module.__spec__.loader is module.__loader__
assert "class PreTrainedModel" in inspect.getsource(module)
"""
    python("-c", program)
