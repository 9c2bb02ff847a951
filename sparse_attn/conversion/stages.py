"""Stages of a conversion, each resumable: choose, heal, save, measure."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from typing import Any

import torch
from accelerate import PartialState
from transformers import PreTrainedModel

from sparse_attn.comparison.reader import Reader
from sparse_attn.conversion.card import write_card
from sparse_attn.conversion.converting import PLAN, convert
from sparse_attn.conversion.inputs import Inputs, read_inputs, read_model
from sparse_attn.conversion.options import Options
from sparse_attn.conversion.page import make_page
from sparse_attn.conversion.record import MODEL, STAGES_FILE, measure
from sparse_attn.hf.checkpoints import last_complete_checkpoint, remove_checkpoints, remove_drafts
from sparse_attn.hf.opening import load_tokenizer, quiet_transformers, resolve_model
from sparse_attn.mappings.syntax import parse_mapping, parts_of
from sparse_attn.system.files import disk_errors, read_json, write_json
from sparse_attn.system.run_folders import CONFIG_FILE, check_run_folder, claim_run_folder

RECORD_FILE = "record.json"


def perform(options: Options) -> dict[str, Any] | None:
    """Run the stages that are not done yet; return the record in the main process.

    Raises:
        ValueError, TypeError, OSError: what is wrong with the options, their files or the model.
    """
    parse_mapping(options.mapping, "--mapping")
    inputs = read_inputs(options)
    folder, state = options.out, PartialState(cpu=not torch.accelerator.is_available())
    content = options.content()
    check_run_folder(folder, content, (folder / CONFIG_FILE).exists())
    if (folder / RECORD_FILE).exists():
        found: dict[str, Any] = read_json(folder / RECORD_FILE, f"--out {folder}", "delete it")
        return found if state.is_main_process else None
    if not (folder / MODEL).exists():
        _make(options, inputs, content)
    if not state.is_main_process:
        return None
    record = measure(options, inputs)
    with disk_errors(folder):
        make_page(record).write(folder)
        trust = options.trust_remote_code
        write_card(folder / MODEL, options.model, record, trust_remote_code=trust)
    write_json(folder / RECORD_FILE, record)
    remove_checkpoints(folder)
    return record


def _make(options: Options, inputs: Inputs, content: dict[str, Any]) -> None:
    """Convert the model and save it in the folder."""
    folder, plan, is_main = options.out, options.out / PLAN, PartialState().is_main_process
    reader = read_model(options, inputs.data)
    reader.lengths([*inputs.texts, *inputs.data.inputs])  # raises for another tokenizer
    is_new = not folder.exists()
    if is_main:
        claim_run_folder(folder, content, (folder / CONFIG_FILE).exists())
        remove_drafts(folder)
    planned, done = plan.exists(), last_complete_checkpoint(folder)
    started = time.time()
    try:
        _convert(reader, options, inputs)
    except (ValueError, TypeError):
        if is_main and not plan.exists():  # leave the folder free for other options
            (folder / CONFIG_FILE).unlink()
            if is_new:
                with suppress(OSError):  # something else may lie in it
                    folder.rmdir()
        raise
    if is_main:
        chosen = started if planned else plan.stat().st_mtime
        seconds = {} if planned else {"choosing": chosen - started}
        step = int(done.name.rpartition("-")[2]) if done else 0
        found = {**seconds, "healing": time.time() - chosen, "resumed_from_step": step}
        write_json(folder / STAGES_FILE, found)
        _save(reader.model, options)
    PartialState().wait_for_everyone()


def _convert(reader: Reader, options: Options, inputs: Inputs) -> None:
    name, parameters = parts_of(options.mapping)
    texts: Any = inputs.texts
    with disk_errors(options.out):
        convert(
            reader.model,
            name,
            reader.tokenizer,
            texts,
            output_dir=options.out,
            target_zeros=options.target_zeros,
            choose_layers=options.choose_layers,
            steps=options.steps,
            batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            ramp=options.ramp,
            max_length=min(options.max_length, reader.limit),
            seed=options.seed,
            **parameters,
        )


def _save(model: PreTrainedModel, options: Options) -> None:
    """Save model and tokenizer atomically."""
    draft = options.out / f"{MODEL}.tmp"
    shutil.rmtree(draft, ignore_errors=True)
    path = resolve_model(options.model, "MODEL", gguf=True)
    with disk_errors(options.out / MODEL), quiet_transformers():
        # restore what the reader changed: padding
        config, tokenizer = load_tokenizer(path, options.trust_remote_code)
        model.config.pad_token_id = config.pad_token_id
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
    draft.replace(options.out / MODEL)
