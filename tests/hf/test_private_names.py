"""Private names of other libraries: each has a reason where it is used, and a test.

A new one needs a comment `# private: ...` and an entry in `HAVE`, or in `TESTED` if another test
fails without it.
"""

import argparse
import ast
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.utils import output_capturing

from sparse_attn.kernels import cpu

ROOT = Path(__file__).parents[2]
ROOMS = ("sparse_attn", "glue", "engine", "experiments", "benchmarks")
HOOKS = (
    "_forward_hooks _forward_pre_hooks _backward_hooks _backward_pre_hooks _state_dict_pre_hooks"
)
ASKED = "_are_functorch_transforms_active _current_graph_task_id _len_torch_function_stack"
DISPATCH = "_dispatch_key_parse _dispatch_keys _dispatch_tls_local_include_set"
HAVE = [
    (torch, "_C _assert_async _dynamo _ops"),
    (torch._C, f"_autograd {ASKED} {DISPATCH}"),
    (torch._C._autograd, "_top_saved_tensors_default_hooks"),
    (torch.autograd, "_profiler_enabled"),
    (torch.compiler, "_is_exporting_flag"),
    (torch.cuda, "_sleep"),
    (torch.ops.mkldnn, "_is_mkldnn_bf16_supported"),
    (forward_ad, "_current_level"),
    (cpu._forward, "_init_fn"),
    (nn.Module(), HOOKS),
    (nn.Module(), "_forward_pre_hooks_with_kwargs _forward_hooks_always_called"),
    (LlamaConfig(), "_attn_implementation _attn_implementation_internal _output_attentions"),
    (LlamaForCausalLM, "_can_set_attn_implementation _no_split_modules _get_resized_lm_head"),
    (LlamaForCausalLM, "_get_logits_processor"),
    (Trainer, "_get_train_sampler _save_checkpoint"),
    (output_capturing, "_active_collector"),
    (argparse.ArgumentParser(), "_option_string_actions"),
    (argparse, "_ArgumentGroup"),
]
TESTED = {
    "hf/test_private_names.py": "_loss_function _n_gpu",
    "hf/test_export.py": "_orig_mod",
    "hf/test_offload.py": "_hf_hook",
    "hf/test_saving.py": "_weight_conversions _raise_exceptions_for_missing_entries",
    "hf/test_refusals.py": "getsource",
    "hf/test_word_timestamps.py": "_getframe",
    "integrations/test_lm_eval.py": "_create_model",
    "integrations/test_servers.py": "co_names",
}
# documented in spite of the underscore, and parts of texts
PUBLIC = {"_exit", "_fields", "_replace"}
TEXTS = {"_ATTENTION", "_codecs", "_kernel", "_loss", "_perplexity", "_reconstruct", "_sparsity"}


def defined(node: ast.AST) -> str:
    match node:
        case (
            ast.FunctionDef(name=name)
            | ast.ClassDef(name=name)
            | ast.arg(arg=name)
            | ast.Name(id=name, ctx=ast.Store())
            | ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store())
        ):
            return name
    return ""


def used(node: ast.AST) -> list[str]:
    """The names in an expression or import that may be private."""
    match node:
        case ast.Attribute(attr=name) | ast.alias(name=name) | ast.ImportFrom(module=str(name)):
            return name.split(".")
        case ast.Constant(value=str(name)) if name.isidentifier():
            return [name]
    return []


def test_every_use_has_a_reason() -> None:
    """Of names that we do not define; an overridden method would count as ours."""
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    nodes = {path: list(ast.walk(ast.parse(path.read_text()))) for path in files}
    ours = {defined(node) for path in files for node in nodes[path]} | PUBLIC | TEXTS
    known = set(" ".join([*(names for _, names in HAVE), *TESTED.values()]).split()) - ours
    for path in files:
        lines, first = path.read_text().splitlines(), dict[str, int]()
        for node in nodes[path]:
            for name in used(node):
                if name in known or (re.match("_(?!_|sparse_attn)", name) and name not in ours):
                    first[name] = min(node.lineno, first.get(name, node.lineno))
        for name, line in first.items():
            assert name in known, f"{path}:{line}: {name} is private"
            near = "\n".join(lines[max(0, line - 8) : line])
            assert "# private: " in near, f"{path}:{line}: say why {name} is needed"


@pytest.mark.parametrize(("holder", "names"), HAVE)
def test_names_exist(holder: object, names: str) -> None:
    assert [name for name in names.split() if not hasattr(holder, name)] == []


def test_state_of_torch() -> None:
    seen: list[list[bool]] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
        asked = torch._C._are_functorch_transforms_active(), torch.compiler._is_exporting_flag
        backward = torch._C._current_graph_task_id() != -1
        seen.append([*asked, forward_ad._current_level >= 0, hooks is not None, backward])
        return x.sin()

    x = torch.ones(2, requires_grad=True)
    torch.func.vmap(look)(x)
    torch.export.export(type("Looking", (nn.Module,), {"forward": staticmethod(look)})(), (x,))
    with forward_ad.dual_level():
        look(x)
    with saved_tensors_hooks(torch.sin, torch.sin):
        look(torch.ones(2))
    x.register_hook(look)
    x.sum().backward()
    look(x)
    assert not any(seen.pop())
    assert all(state[i] for i, state in enumerate(seen)), seen
    assert len(seen) == 5
    assert cpu._forward._init_fn.__module__ == cpu.__name__


@pytest.mark.parametrize("name", HOOKS.split())
def test_hooks(name: str) -> None:
    module = nn.Identity()
    getattr(module, "register" + name.removesuffix("s").replace("_back", "_full_back"))(print)
    assert list(getattr(module, name).values()) == [print]


def test_models_and_their_configs() -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "vocab_size": 9}
    config = LlamaConfig(**sizes, num_hidden_layers=1, attn_implementation="eager")
    assert config._attn_implementation == config._attn_implementation_internal == "eager"
    config._output_attentions = True
    assert config.output_attentions
    model, collected, collector = LlamaForCausalLM(config), [], output_capturing._active_collector
    assert set(model._no_split_modules) <= {type(module).__name__ for module in model.modules()}
    model.model.norm.register_forward_hook(lambda *_: collected.extend(collector.get()))
    model(torch.ones(1, 2, dtype=torch.long), output_attentions=True)
    assert "attentions" in collected
    assert not collector.compiling
    model.loss_function = print
    assert vars(model)["_loss_function"] is print
    del model._loss_function
    assert model.loss_function is not print


def test_arguments_of_trainer(tmp_path: Path) -> None:
    arguments = TrainingArguments(tmp_path, use_cpu=True, report_to=[])
    arguments._n_gpu = 7
    assert arguments.n_gpu == 7
    asked: list[object] = []
    trainer = Trainer(nn.Linear(1, 1), arguments, train_dataset=[0])
    trainer._get_train_sampler = lambda *args: asked.append(args)
    trainer.get_train_dataloader()
    assert asked
