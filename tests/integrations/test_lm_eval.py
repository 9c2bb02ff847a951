"""lm-evaluation-harness: a local task, its scores beside those computed here, the command line."""

import json
import math
import re
import runpy
from functools import partial

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from sparse_attn import load_pretrained, patch_model
from tests.hf.helpers import jitter, peft_warns
from tests.letters import letter_tokenizer

lm_eval = pytest.importorskip("lm_eval", reason="needs lm_eval")
from lm_eval.tasks import TaskManager  # noqa: E402

from sparse_attn.integrations.lm_eval import PatchedLM  # noqa: E402

ROWS = [
    {"question": "abc de", "choices": ["f", "gh"], "right": 0},
    {"question": "x y z", "choices": ["ab", "c"], "right": 1},
    {"question": "hello", "choices": ["you", "me"], "right": 0},
]


@pytest.fixture
def causal(models, tmp_path):
    """A folder with the model, and a tokenizer that adds nothing to a text."""
    letters = letter_tokenizer().backend_tokenizer
    letters.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="[SEP]")
    return save(AutoModelForCausalLM.from_pretrained(models.causal), tokenizer, tmp_path / "plain")


def save(model, tokenizer, folder):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def tasks(tmp_path):
    """A folder for --include_path with the task `tiny`."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "rows.json").write_text("\n".join(map(json.dumps, ROWS)))
    task = {
        "task": "tiny",
        "dataset_path": "json",
        "dataset_kwargs": {
            "data_files": {"test": str(tmp_path / "tasks" / "rows.json")},
            "cache_dir": str(tmp_path / "cache"),
        },
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "question",
        "doc_to_choice": "choices",
        "doc_to_target": "right",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    (tmp_path / "tasks" / "tiny.yaml").write_text(json.dumps(task))
    return tmp_path / "tasks"


def evaluate(name, tasks, **model_args):
    """Accuracy, and log p of each choice."""
    found = lm_eval.simple_evaluate(
        model=name,
        model_args={key: str(value) for key, value in model_args.items()},
        tasks=["tiny"],
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        device="cpu",
        batch_size=2,
        bootstrap_iters=0,
    )
    scores = [[p for (p, _) in row["filtered_resps"]] for row in found["samples"]["tiny"]]
    return found["results"]["tiny"]["acc,none"], scores


def scored(model, folder):
    """The same, one text at a time."""
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def score(question, choice):
        asked, ids = tokenizer([question, f"{question} {choice}"])["input_ids"]
        with torch.no_grad():
            log_p = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        return sum(log_p[i - 1, ids[i]].item() for i in range(len(asked), len(ids)))

    scores = [[score(row["question"], choice) for choice in row["choices"]] for row in ROWS]
    right = [row["right"] == s.index(max(s)) for row, s in zip(ROWS, scores, strict=True)]
    return sum(right) / len(ROWS), scores


def agree(found, expected):
    assert found[0] == expected[0]
    assert all(
        math.isclose(p, q, rel_tol=1e-5)
        for pair in zip(found[1], expected[1], strict=True)
        for p, q in zip(*pair, strict=True)
    )


@pytest.mark.slow
def test_softmax_is_plain_hf_and_another_mapping_what_it_computes_itself(causal, tasks):
    plain = evaluate("hf", tasks, pretrained=causal)
    agree(evaluate("sparse-attn", tasks, pretrained=causal, mapping="softmax"), plain)
    model = patch_model(AutoModelForCausalLM.from_pretrained(causal).eval(), "entmax", alpha=1.3)
    expected = scored(model, causal)
    assert abs(expected[1][0][0] - plain[1][0][0]) > 1e-2
    named = evaluate("sparse-attn", tasks, pretrained=causal, mapping="entmax", alpha=1.3)
    agree(named, expected)
    assert evaluate("sparse-attn", tasks, pretrained=causal, mapping="entmax:alpha=1.3") == named


@pytest.mark.slow
@peft_warns
def test_a_saved_model_has_its_mappings_and_an_adapter_its_own(causal, tasks, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(causal)
    model = AutoModelForCausalLM.from_pretrained(causal).eval()
    jitter(patch_model(model, "t-softmax", t=2.0, learn="t", per="head"))
    folder = save(model, tokenizer, tmp_path / "patched")
    agree(evaluate("sparse-attn", tasks, pretrained=folder), scored(model, folder))

    model = load_pretrained(AutoModelForCausalLM, folder)
    lora = LoraConfig(
        r=2,
        target_modules=["c_attn"],
        init_lora_weights=False,
        modules_to_save=["sparse_attn"],
        fan_in_fan_out=True,
    )
    tokenizer.add_tokens("[NEW]")
    model.resize_token_embeddings(len(tokenizer))
    adapted = get_peft_model(model, lora).eval()
    jitter(adapted)
    adapter = tmp_path / "adapter"
    adapted.save_pretrained(adapter, save_embedding_layers=True)
    tokenizer.save_pretrained(adapter)
    found = evaluate("sparse-attn", tasks, pretrained=folder, peft=adapter, tokenizer=adapter)
    agree(found, scored(adapted, adapter))


def test_values_belong_to_the_mapping_though_lm_eval_has_an_option_of_that_name(causal):
    options = {"gamma": 0.5, "delta": 0.25}
    found = PatchedLM(str(causal), "scaled-entmax:alpha=1.5", device="cpu", **options)
    mapping = found.model.transformer.h[0].attn.sparse_attn
    assert mapping.parameter_values().items() >= {"alpha": 1.5, **options}.items()


@pytest.mark.slow
def test_the_command_line(causal, tasks, monkeypatch, capsys):
    # its own tasks are thousands of files
    ours = partial(TaskManager, include_defaults=False)
    monkeypatch.setattr("lm_eval.tasks.TaskManager", ours)
    where = ["--include_path", tasks, "--tasks", "tiny", "--device", "cpu"]
    model_args = f"pretrained={causal},mapping=entmax,alpha=2"
    given = ["--model", "sparse-attn", "--model_args", model_args]
    monkeypatch.setattr("sys.argv", ["lm-eval", "run", *map(str, [*given, *where])])
    runpy.run_module("sparse_attn.integrations.lm_eval", run_name="__main__")
    accuracy, _ = evaluate("sparse-attn", tasks, pretrained=causal, mapping="sparsemax")
    assert re.search(rf"\|tiny *\|.*\|acc *\|.*\| *{accuracy:.4f} *\|", capsys.readouterr().out)
