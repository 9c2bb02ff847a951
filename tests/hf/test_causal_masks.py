"""Masks that are causality alone: the kernels get `causal`, unless the model changes the mask."""

from typing import Any

import pytest
import torch

from sparse_attn import patch_model
from sparse_attn.hf import attention
from tests.hf.families import BY_NAME


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, bool]]:
    """For each call of an attention layer, whether it has a mask and whether it is causal."""
    found: list[tuple[bool, bool]] = []
    split = attention._split_mask

    def spy(*arguments: Any) -> Any:
        mask, bias, causal = split(*arguments)
        found.append((mask is not None, causal))
        return mask, bias, causal

    monkeypatch.setattr(attention, "_split_mask", spy)
    return found


def run(name: str, change: Any = None, **more: Any) -> torch.Tensor:
    family = BY_NAME[name]
    model = patch_model(family.build(), "entmax", alpha=1.5)
    if change is not None:
        model.layers[0].self_attn.register_forward_pre_hook(change, with_kwargs=True)
    given = {"input_ids": family.example["input_ids"], **more}
    hidden: torch.Tensor = model(**given).last_hidden_state
    return hidden


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("padding", [False, True])
def test_a_causal_mask(seen: Any, mode: Any, padding: bool) -> None:
    """Also with a 2-D mask without padding."""
    more = {"attention_mask": torch.ones(3, 9).long()} if padding else {}
    with mode():
        run("llama", **more)
    assert seen == [(False, True)] * 2


def test_other_masks(seen: Any) -> None:
    mask = torch.ones(3, 9).long()
    mask[1, :4] = 0
    run("llama", attention_mask=mask)
    run("mistral")  # a window of 4
    own = torch.ones(3, 1, 9, 9, dtype=torch.bool).tril()
    run("llama", attention_mask=own)
    assert seen == [(True, False)] * 6


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_mask_that_the_model_changes(seen: Any, in_place: bool, mode: Any) -> None:
    """Nothing of the change is lost."""

    def change(module: Any, args: Any, kwargs: Any) -> Any:
        mask = kwargs["attention_mask"]
        mask = mask.contiguous() if not in_place else mask
        if in_place:
            mask[:, :, 5, 2].fill_(False)
        else:
            mask = mask.clone()
            mask[:, :, 5, 2] = False
        return args, {**kwargs, "attention_mask": mask}

    own = torch.ones(3, 1, 9, 9, dtype=torch.bool).tril()
    own[:, :, 5, 2] = False
    with mode():
        found = run("llama", change)
    # in place, the next layer sees the change as well
    assert seen[0] == (True, False)
    if in_place:
        with mode():
            torch.testing.assert_close(found, run("llama", attention_mask=own))


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_compiled(padded: bool, whole: bool) -> None:
    """The mark of a mask that was made outside of the graph does not matter there."""
    torch.compiler.reset()
    family = BY_NAME["llama"]
    model = patch_model(family.build(), "sparsemax")
    given = family.example if padded else {"input_ids": family.example["input_ids"]}
    with torch.no_grad():
        expected = model(**given).last_hidden_state
        for module in [model] if whole else model.layers:
            module.compile(backend="eager", fullgraph=True)
        torch.testing.assert_close(model(**given).last_hidden_state, expected)
