"""The package for Hugging Face's `kernels`, loaded where the library cannot be imported."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel

from release.hub_kernel import write
from release.kernel import flash_attn_forward
from sparse_attn import Mapping, kernels, patch_model
from tests.commands import python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs triton")

CALLS = {
    "causal": {"causal": True},
    "window": {"causal": True, "window": 3},
    "mask": {"mask": torch.rand(2, 1, 9, 9, generator=torch.Generator().manual_seed(0)) > 0.3},
}
MAPPINGS = [("entmax", {"alpha": 1.5}), ("r-softmax", {"r": 0.3}), ("sigsoftmax", {})]

ALONE = "import sys; sys.modules['sparse_attn'] = None\n"

FUNCTION = (
    ALONE
    + """
import torch
from pathlib import Path
from kernels import get_local_kernel
(folder,) = sys.argv[1:]
kernel = get_local_kernel(Path(folder, "package"))
cases = torch.load(folder + "/cases.pt", weights_only=False)
for impl in "reference", "triton":
    for name, parameters, options, inputs, expected in cases:
        out = kernel.attention(*inputs, kernel.Mapping(name, **parameters), impl=impl, **options)
        found = out, *torch.autograd.grad(out.square().sum(), inputs)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
assert not [name for name in sys.modules if name.startswith("sparse_attn.")]
print(*kernel.mapping_names())
"""
)

MODEL = (
    ALONE
    + """
import torch
from transformers.utils import import_utils
# the versions of `kernels` that this Transformers asks for, whichever they are
import_utils.KERNELS_MIN_VERSION, import_utils.KERNELS_MAX_VERSION = "0", "99"
import_utils.is_kernels_available.__wrapped__.__defaults__ = "0", "99"
from transformers import AutoModel

folder, implementation = sys.argv[1:]
for case in torch.load(folder + "/models.pt", weights_only=False):
    options = {"attn_implementation": implementation, "allow_all_kernels": True}
    model = AutoModel.from_pretrained(case["folder"], **options).eval()
    for inputs, expected in case["runs"]:
        found = model(**inputs).last_hidden_state
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    if case["caches"]:
        inputs, expected = case["runs"][0]
        first = model(inputs["input_ids"][:, :-1])
        name = "cache" if hasattr(first, "cache") else "past_key_values"  # before Transformers 5.24
        last = model(inputs["input_ids"][:, -1:], **{name: first[name]}).last_hidden_state
        torch.testing.assert_close(last, expected[:, -1:], atol=1e-5, rtol=1e-5)
print(implementation)
"""
)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    write(folder / "package")
    return folder


def test_it_is_made_of_what_needs_torch_and_triton_alone(package: Path) -> None:
    files = list(package.rglob("*.py"))
    assert {path.parent.name for path in files} >= {"torch-cpu", "torch-cuda", "mappings", "triton"}
    assert not [path for path in files if path.parent.name == "cpu"]
    for path in files:
        assert not re.search("(import|from) (transformers|sparse_attn)", path.read_text("utf-8"))


def test_its_function_is_the_library_s(package: Path) -> None:
    torch.manual_seed(0)
    cases = []
    for (name, parameters), options in zip(MAPPINGS, CALLS.values(), strict=True):
        inputs = [torch.randn(2, 2, 9, 16, requires_grad=True) for _ in range(3)]
        out = kernels.attention(*inputs, Mapping(name, **parameters), impl="reference", **options)
        expected = out, *torch.autograd.grad(out.square().sum(), inputs)
        cases.append((name, parameters, options, inputs, expected))
    torch.save(cases, package / "cases.pt")
    printed = python("-c", FUNCTION, package, env={"TRITON_INTERPRET": "1"})
    # other tests register mappings of their own in this process
    names = python("-c", "from sparse_attn.mappings import mapping_names; print(*mapping_names())")
    assert printed.split() == names.split()


@pytest.mark.parametrize("is_causal", [None, False, True])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("queries", [1, 9])
def test_without_a_mask_its_arguments_hold(
    is_causal: bool | None, window: int | None, queries: int
) -> None:
    config = SimpleNamespace(_attn_implementation="org/sparse:r-softmax,r=2e-1")
    module: Any = SimpleNamespace(config=config, is_causal=True)
    query, key, value = torch.randn(3, 2, 2, 9, 8).unbind()
    query = query[:, :, :queries]
    # position of a query less that of a key
    distance = torch.arange(queries)[:, None] - torch.arange(9)
    mask = torch.ones(queries, 9, dtype=torch.bool)
    if queries > 1 and is_causal is not False:
        mask &= distance >= 0
    if queries > 1 and window is not None:
        mask &= distance.abs() < window
    options = {"is_causal": is_causal, "sliding_window": window}
    out, weights = flash_attn_forward(module, query, key, value, None, **options)
    expected = kernels.attention(query, key, value, Mapping("r-softmax", r=0.2), mask=mask)
    torch.testing.assert_close(out.transpose(1, 2), expected)
    assert weights is None


SIZES = {
    **{"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 20},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32},
}


def test_it_is_an_attention_implementation_of_transformers(package: Path) -> None:
    """Of an encoder, a causal model and one with a window; padded, short, and with a cache."""
    cases = []
    for kind, options in ("bert", {}), ("llama", {}), ("mistral", {"sliding_window": 4}):
        torch.manual_seed(0)
        model = AutoModel.from_config(AutoConfig.for_model(kind, **SIZES, **options)).eval()
        model.save_pretrained(package / kind)
        patch_model(model, "entmax", alpha=1.7)
        ids = torch.randint(20, (2, 7))
        padding = torch.ones(2, 7, dtype=torch.long)
        padding[1, 4:] = 0
        runs = [{"input_ids": ids}, {"input_ids": ids, "attention_mask": padding}]
        runs += [{"input_ids": ids[:, :1]}, {"input_ids": ids[:, :3]}]
        with torch.no_grad():
            pairs = [(inputs, model(**inputs).last_hidden_state) for inputs in runs]
        cases.append({"folder": package / kind, "runs": pairs, "caches": kind != "bert"})
    torch.save(cases, package / "models.pt")
    implementation = "org/sparse:entmax,alpha=1.7"
    env = {"LOCAL_KERNELS": f"org/sparse={package / 'package'}", "HF_HUB_OFFLINE": "1"}
    assert python("-c", MODEL, package, implementation, env=env).strip() == implementation
