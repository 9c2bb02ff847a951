"""What a user does with a model, and what must come to the same numbers."""

import copy
import io
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from sparse_attn import load_pretrained

NEW = 5  # tokens
Batch = dict[str, Tensor]
Answer = dict[str, Tensor]


@dataclass(frozen=True)
class Way:
    """A use of a model in a batch, and another with the same answer.

    Attributes:
        answer: of the model and the batch.
        expected: the same of the reference; `answer` if left out.
        generates: whether it is for language models only.
        tolerance: of the norm of each tensor.
        refused: what says so when the model has zeros among the probabilities of tokens.
    """

    answer: Callable[[Any, Batch], Answer]
    expected: Callable[[Any, Batch], Answer] | None = None
    generates: bool = False
    tolerance: float = 1e-4
    refused: str = ""


def step(model: Any, *batches: Batch, **options: Any) -> Answer:
    """Loss, logits and all gradients of a step in training mode."""
    model.train()
    torch.manual_seed(4)
    outputs = [model(**batch, **options) for batch in batches]
    loss = sum(output.loss for output in outputs) / len(batches)
    loss.backward()
    found = {"loss": loss.detach(), "logits": torch.cat([o.logits.detach() for o in outputs])}
    for output in outputs if options else ():
        found |= {f"attention {i}": a.detach() for i, a in enumerate(output.attentions)}
    for name, parameter in model.named_parameters():
        for wrapper in ("module.", "_orig_mod.", "base_model.model."):
            name = name.removeprefix(wrapper)
        if parameter.grad is not None:
            found[f"gradient of {name}"] = parameter.grad.clone()
    return found


def after(change: Callable[[Any], Any]) -> Callable[[Any, Batch], Answer]:
    """A training step of what `change` makes of the model."""
    return lambda model, batch: step(change(model), batch)


def in_two(model: Any, batch: Batch) -> Answer:
    """A step whose gradients accumulate over the halves of the batch."""
    pairs = zip(*(tensor.chunk(2) for tensor in batch.values()), strict=True)
    return step(model, *(dict(zip(batch, pair, strict=True)) for pair in pairs))


def dropout(model: Any) -> Any:
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.3
    return model


def checkpointing(reentrant: bool) -> Callable[[Any], Any]:
    def enable(model: Any) -> Any:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        return model

    return enable


def autocast(model: Any) -> Any:
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    return model


def compiled(model: Any) -> Any:
    torch.compiler.reset()
    model.compile(backend="aot_eager")
    return model


def in_a_group(model: Any, batch: Batch) -> Answer:
    """A step under DDP, in a group of one process."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meeting"
        distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
        try:
            return step(DistributedDataParallel(model.train()), batch)
        finally:
            distributed.destroy_process_group()


def lora(model: Any) -> Any:
    """An adapter that changes what the model computes."""
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    torch.manual_seed(3)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.2)
    return adapted


def loaded(model: Any, folder: Any) -> Any:
    """Loaded with its attention, which a config does not keep where a head alone is patched."""
    implementation = model.config._attn_implementation
    kept = {"attn_implementation": "eager"} if implementation == "eager" else {}
    return load_pretrained(type(model), folder, **kept)


def lora_loaded(model: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(Path(folder, "base"))
        lora(model).save_pretrained(Path(folder, "adapter"))
        base = loaded(model, Path(folder, "base"))
        return PeftModel.from_pretrained(base, Path(folder, "adapter"), is_trainable=True)


def saved(model: Any) -> Any:
    """Saved in shards and loaded."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, max_shard_size="4KB")
        return loaded(model, folder)


def completed(model: Any) -> Any:
    """Loaded by Transformers, and completed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            plain = type(model).from_pretrained(folder)
        done = load_pretrained(plain, folder)
    if model.config._attn_implementation == "eager":
        done.set_attn_implementation("eager")
    return done


def state_dict(model: Any) -> Any:
    """Given back to a copy whose parameters have changed."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    other.load_state_dict(model.state_dict())
    return other


def pickled(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def prompt(batch: Batch) -> Batch:
    """Rows padded on the left."""
    return {name: tensor.flip(-1) for name, tensor in batch.items() if name != "labels"}


@torch.no_grad()
def padded(model: Any, batch: Batch) -> Answer:
    """Logits of the last token of rows padded on the left."""
    logits = model.eval()(**prompt(batch)).logits
    return {"logits": logits[:, -1] if logits.dim() == 3 else logits}


@torch.no_grad()
def alone(model: Any, batch: Batch) -> Answer:
    """The same, each row by itself and without padding."""
    rows = zip(*prompt(batch).values(), strict=True)
    found = [model.eval()(input_ids=ids[mask == 1][None]).logits for ids, mask in rows]
    return {"logits": torch.cat([row[:, -1] if row.dim() == 3 else row for row in found])}


def generate(**options: Any) -> Callable[[Any, Batch], Answer]:
    """Greedy text, its logits, and its probabilities after all processors."""

    def answer(model: Any, batch: Batch) -> Answer:
        result = model.eval().generate(
            **prompt(batch),
            **{"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, **options},
            output_logits=True,
            output_scores=True,
            return_dict_in_generate=True,
        )
        return {
            "text": result.sequences[:, -NEW:],
            "logits": torch.stack(result.logits, 1).float(),
            "probabilities": torch.stack(result.scores, 1).float().softmax(-1),
        }

    return answer


WAYS = {
    "dropout": Way(after(dropout)),
    "accumulation": Way(in_two, step),
    "output_attentions": Way(lambda model, batch: step(model, batch, output_attentions=True)),
    "checkpointing, reentrant": Way(after(checkpointing(True)), step),
    "checkpointing, not reentrant": Way(after(checkpointing(False)), step),
    "autocast": Way(after(autocast), tolerance=0.2),
    "torch.compile": Way(after(compiled), step),
    "DDP": Way(in_a_group, step),
    "LoRA": Way(after(lora)),
    "LoRA, saved and loaded": Way(after(lora_loaded), after(lora)),
    "load_pretrained": Way(after(saved), step),
    "from_pretrained, load_pretrained": Way(after(completed), step),
    "load_state_dict": Way(after(state_dict), step),
    "deepcopy": Way(after(copy.deepcopy), step),
    "pickle": Way(after(pickled), step),
    "left padding": Way(padded, alone),
    "dynamic cache": Way(generate(), generate(use_cache=False), True),
    "static cache": Way(generate(cache_implementation="static"), generate(), True),
    "chunked prefill": Way(generate(prefill_chunk_size=4), generate(), True),
    "guidance": Way(generate(guidance_scale=1.7), None, True, refused="mapping without zeros"),
    "repetition penalty": Way(generate(repetition_penalty=1.3), generates=True),
    "no repeated n-grams": Way(generate(no_repeat_ngram_size=2), generates=True),
}
