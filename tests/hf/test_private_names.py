"""Private names of other libraries that the package uses: they exist, and hold what it reads."""

from pathlib import Path

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.utils import output_capturing

HOOKS = "_forward_hooks _forward_pre_hooks _backward_hooks _backward_pre_hooks"
ASKED = "_are_functorch_transforms_active _current_graph_task_id _len_torch_function_stack"
DISPATCH = "_dispatch_key_parse _dispatch_keys _dispatch_tls_local_include_set"
HAVE = [
    (torch, "_C _assert_async _dynamo _ops"),
    (torch._C, f"_autograd _current_autograd_node _functorch {ASKED} {DISPATCH}"),
    (torch._C._autograd, "_get_sequence_nr _top_saved_tensors_default_hooks"),
    (torch.ones(1, requires_grad=True).sum().grad_fn, "_sequence_nr"),
    (torch.autograd, "_profiler_enabled"),
    (torch.cuda, "_sleep"),
    (torch.ops.mkldnn, "_is_mkldnn_bf16_supported"),
    (nn.Module(), f"{HOOKS} _forward_pre_hooks_with_kwargs _forward_hooks_always_called"),
    (nn.Module(), "_buffers _load_from_state_dict _apply"),
    (LlamaConfig(), "_attn_implementation _attn_implementation_internal _output_attentions"),
    (LlamaForCausalLM, "_can_set_attn_implementation _no_split_modules _get_resized_lm_head"),
    (LlamaForCausalLM, "_get_logits_processor _init_weights _finalize_model_loading"),
    (LlamaForCausalLM, "_keys_to_ignore_on_load_missing"),
    (Trainer, "_get_train_sampler _save_checkpoint"),
]


def test_names_exist() -> None:
    assert [n for holder, names in HAVE for n in names.split() if not hasattr(holder, n)] == []


def test_torch() -> None:
    seen: list[list[bool]] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
        level, backward = forward_ad._current_level >= 0, torch._C._current_graph_task_id() != -1
        flags = torch._C._are_functorch_transforms_active(), torch.compiler._is_exporting_flag
        seen.append([*flags, level, hooks, backward])
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
    assert [state[i] for i, state in enumerate(seen)] == [True] * 5
    for name in HOOKS.split():
        module = nn.Identity()
        getattr(module, "register" + name.removesuffix("s").replace("_back", "_full_back"))(print)
        assert list(getattr(module, name).values()) == [print]


def test_models() -> None:
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


def test_trainer(tmp_path: Path) -> None:
    arguments = TrainingArguments(tmp_path, use_cpu=True, report_to=[])
    arguments._n_gpu = 7
    assert arguments.n_gpu == 7
    asked: list[object] = []
    trainer = Trainer(nn.Linear(1, 1), arguments, train_dataset=[0])
    trainer._get_train_sampler = lambda *args: asked.append(args)
    trainer.get_train_dataloader()
    assert asked
