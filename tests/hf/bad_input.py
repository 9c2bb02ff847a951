"""What attention, schedules and loading refuse."""

import json
import math
from functools import partial
from unittest.mock import patch

import torch
from torch import nn
from transformers import AutoModel, BertConfig

from sparse_attn import (
    Mapping,
    SparsitySchedule,
    SparsityScheduleCallback,
    export_model,
    kernels,
    load_pretrained,
    patch_model,
)
from sparse_attn.heads import patch_lm_head, patch_multilabel_head
from sparse_attn.hf.attention import sparse_attention
from sparse_attn.hf.layers import AttentionLayer
from sparse_attn.hf.patching import make_mapping
from sparse_attn.system.files import UnwrittenError
from tests.bad_input import Wrong

from .families import BY_NAME, tokens
from .lm_heads import BY_MODEL

BERT = BY_NAME["bert"]


def schedule(says: str, error: type[Exception] = ValueError, **arguments: object) -> Wrong:
    name = f"SparsitySchedule: {arguments}"
    return Wrong(name, lambda _: SparsitySchedule(**arguments), error, says)


def progress(value: float) -> Wrong:
    return Wrong(
        f"schedule: progress={value}",
        lambda _: SparsitySchedule().value(value),
        ValueError,
        "expected the fraction of training done",
    )


def by_query(says: str, query_size: int | None, x: torch.Tensor | None, heads: int = 1) -> Wrong:
    """attention() with 2 queries of one head."""
    mapping = Mapping("scaled-softmax", num_heads=heads, query_size=query_size)
    q = torch.ones(1, 1, 2, 4)
    name = f"query_input: {says}"
    call = partial(kernels.attention, q, q, q, mapping, query_input=x)
    return Wrong(name, lambda _: call(), ValueError, says)


class Renamed(nn.Module):
    config = BertConfig(num_attention_heads=1)

    def forward(self, query):
        return query


def attention(mask, **more):
    layer = patch_model(BERT.build(), "softmax").encoder.layer[0].attention.self
    query = torch.randn(3, 4, 9, 4)
    return sparse_attention(layer, query, query, query, mask, **more)


def export(says, error=ValueError, path="model.pt2", model=Mapping, **inputs):
    """The rows of one mapping or model, which are to be written to `path` in an empty folder."""
    return Wrong(
        f"export_model: {says}",
        lambda folder: export_model(model("sparsemax"), folder / path, inputs),
        error,
        says,
    )


def learned_t():
    return patch_model(BERT.build(), "t-softmax", learn="t")


def no_output_embedding(family, cls):
    return Wrong(
        f"patch_lm_head: {cls}",
        lambda _: patch_lm_head(BY_NAME[family].build(cls), "sigsoftmax"),
        ValueError,
        rf"{cls} has an unpatchable head.*got none; use a language model",
    )


def no_last_layer(family, cls, **changes):
    return Wrong(
        f"patch_multilabel_head: {cls}",
        lambda _: patch_multilabel_head(BY_NAME[family].build(cls, **changes), "sparsemax"),
        ValueError,
        rf"{cls} has no layer to replace: expected.*num_labels=",
    )


def head_not_linear(_):
    model = BY_MODEL["gpt2"].build()
    model.lm_head = torch.nn.Sequential(model.lm_head)
    patch_lm_head(model, "sigsoftmax")


def own_sinks(mapping, says, model="gpt-oss", **arguments):
    return Wrong(
        f"patch_model: {mapping} {arguments} of {model}",
        lambda _: patch_model(BY_NAME[model].build(), mapping, **arguments),
        ValueError,
        says,
    )


def sinks_unseen(name, sinks):
    """A model whose attention holds what looks like a sink, and passes none."""
    model = BY_NAME["llama"].build()
    register = "register_parameter" if isinstance(sinks, torch.nn.Parameter) else "register_buffer"
    getattr(model.layers[1].self_attn, register)(name, sinks)
    return patch_model(model, "softmax")


def malformed(says, change):
    """A saved model whose config was edited."""

    def load(folder):
        patch_model(BERT.build(), "r-softmax").save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        change(config)
        (folder / "config.json").write_text(json.dumps(config))
        load_pretrained(AutoModel, folder)

    return Wrong(f"load_pretrained: {says}", load, ValueError, says)


def hub_id_without_hub(_):
    with patch("huggingface_hub.constants.HF_HUB_OFFLINE", True):
        load_pretrained(AutoModel, "nobody/nothing")


ROWS = [
    by_query("query_input: scaled-softmax does not depend on it", None, torch.ones(1, 2, 3)),
    by_query(r"query_size\) = \(1, 2, 3\), got None", 3, None),
    by_query(r"query_size\) = \(1, 2, 3\), got shape \(1, 2, 4\)", 3, torch.ones(1, 2, 4)),
    by_query("expected num_heads=1, the heads of query, .* got 2", 3, torch.ones(1, 2, 3), heads=2),
    Wrong(
        "per=query of another mapping",
        lambda _: patch_model(BERT.build(), "entmax", per="query"),
        ValueError,
        "per='query': only the factor of .* use scaled-entmax",
    ),
    Wrong(
        "query_size for a layer",
        lambda _: patch_model(BERT.build(), "scaled-entmax", per="query", query_size=7),
        TypeError,
        "query_size=7: unknown parameter",
    ),
    Wrong(
        "a module without hidden_states",
        lambda _: make_mapping(AttentionLayer("a", 0, Renamed()), "scaled-relu", per="query"),
        ValueError,
        r"Renamed \(a\) takes query and not hidden_states",
    ),
    malformed(
        r"config\.sparse_attn: expected a table with version, got 'x'; restore config\.json",
        lambda config: config.update(sparse_attn="x"),
    ),
    malformed("with version, got {'map", lambda config: config["sparse_attn"].pop("version")),
    malformed(
        r"config\.sparse_attn\.mappings: expected a list of tables, got None",
        lambda config: config["sparse_attn"].update(mappings=None),
    ),
    malformed(
        r"config\.sparse_attn\.mappings: expected a table with mapping, params, learn, per, mod",
        lambda config: config["sparse_attn"]["mappings"][0].pop("params"),
    ),
    malformed(
        r"config\.sparse_attn\.mappings\.modules: expected a list of positions, got \[0, '1'\]",
        lambda config: config["sparse_attn"]["mappings"][0].update(modules=[0, "1"]),
    ),
    malformed(
        r"the position of each attention module once, from 0 on, got \[0, 7\]",
        lambda config: config["sparse_attn"]["mappings"][0].update(modules=[0, 7]),
    ),
    malformed(
        r"config\.sparse_attn\.mappings\.per: expected 'layer', 'head' or 'query', got 'galaxy'",
        lambda config: config["sparse_attn"]["mappings"][0].update(per="galaxy"),
    ),
    malformed(
        r"config\.sparse_attn\.version: expected a whole number, got True",
        lambda config: config["sparse_attn"].update(version=True),
    ),
    malformed(
        r"config\.sparse_attn: q=1: unknown parameter; r-softmax takes",
        lambda config: config["sparse_attn"]["mappings"][0].update(params={"q": 1}),
    ),
    malformed(
        r"mapping='mixed-mixed-.*is unknown; it has 12007 characters",
        lambda config: config["sparse_attn"]["mappings"][0].update(
            mapping="mixed-" * 2000 + "softmax"
        ),
    ),
    *(
        malformed(
            rf"{size}=4000000000.*: expected at most 1048576, because each of the {size}",
            lambda config, name=name, size=size: config["sparse_attn"]["mappings"][0].update(
                mapping=name, params={size: 4e9}
            ),
        )
        for name, size in (("plif", "knots"), ("monotone", "units"))
    ),
    own_sinks("softmax", r"sink: layers\.0\.self_attn has .* of its own.*leave sink out", sink=0.0),
    own_sinks("softmax", "sink: .* leave sink out", learn="sink", per="head"),
    *(
        own_sinks(name, rf"mapping='{name}': layers\.0.* has attention sinks.*such as softmax")
        for name in ("sigmoid", "relu", "weighted-softmax", "scaled-relu")
    ),
    own_sinks("relu", "sink: relu cannot have one, because", model="bert", sink=0.0),
    own_sinks("weighted-softmax", "cannot be given a sink", model="bert", sink=0.0),
    *(
        Wrong(
            f"patch_model: {name} that is not passed",
            lambda _, name=name, sinks=sinks: sinks_unseen(name, sinks),
            ValueError,
            rf"LlamaModel has attention sinks, layers\.1\.self_attn\.{name}, which it does not",
        )
        for name, sinks in {
            "sinks": torch.zeros(4),
            "attention_sink_bias": torch.nn.Parameter(torch.zeros(4)),
        }.items()
    ),
    schedule("shape='square': expected one of linear, cosine, cubic", shape="square"),
    schedule("shape='constant': .*; leave the schedule out", shape="constant"),
    schedule("0 <= begin <= end <= 1", begin=-0.1),
    schedule("0 <= begin <= end <= 1", end=1.1),
    schedule("begin=0.6, end=0.4: expected", begin=0.6, end=0.4),
    schedule("0 <= begin <= end <= 1", begin=math.nan),
    schedule("final=nan", final=math.nan),
    schedule("initial=inf: expected a finite number", parameter="t", initial=math.inf, final=2.0),
    schedule("final=inf: expected a finite number", parameter="t", initial=1.0, final=math.inf),
    schedule("initial=nan", initial=math.nan),
    schedule("initial='a': expected a number", TypeError, initial="a"),
    schedule("final=None: expected a number", TypeError, final=None),
    schedule("begin='a': expected a number", TypeError, begin="a"),
    schedule("parameter=3: expected a name", TypeError, parameter=3),
    schedule("final=True: expected a number", TypeError, final=True),
    schedule(r"shape=\['linear'\]: expected one of", shape=["linear"]),
    Wrong(
        "callback without a schedule",
        lambda _: SparsityScheduleCallback("alpha"),
        TypeError,
        "schedule='alpha': expected a SparsitySchedule",
    ),
    *(progress(x) for x in (-0.01, 1.01, 100, math.nan)),
    Wrong(
        "schedule of a learned parameter",
        lambda _: SparsitySchedule("t", 1.0, 2.0).apply(learned_t(), 0.5),
        ValueError,
        "parameter='t'.*no such fixed parameter",
    ),
    Wrong(
        "schedule of a plain model",
        lambda _: SparsitySchedule().apply(BERT.build(), 0.5),
        ValueError,
        "no mapping at all.*patch the model first",
    ),
    Wrong(
        "load_pretrained: path first",
        lambda path: load_pretrained(str(path), AutoModel),
        TypeError,
        "cls='.*': expected a model class, such as AutoModel, or a model, before the path",
    ),
    *(
        Wrong(
            f"load_pretrained: {path} for {type(cls).__name__}",
            lambda _, cls=cls, path=path: load_pretrained(cls, path),
            error,
            says,
        )
        for cls in (AutoModel, BERT.build())
        for path, error, says in (
            ("/nowhere", ValueError, "^path='/nowhere': there is no such folder$"),
            ("./nowhere", ValueError, r"^path='\./nowhere': there is no such folder$"),
            (None, TypeError, "^path=None: expected a folder or a hub id$"),
        )
    ),
    Wrong(
        "load_pretrained: neither a folder nor a hub id",
        hub_id_without_hub,
        OSError,
        "; there is no folder of that name either$",
    ),
    Wrong(
        "load_pretrained: path of a config",
        lambda path: load_pretrained(AutoModel, path, config=str(path)),
        TypeError,
        "config='.*': expected a config object or nothing, got a path",
    ),
    Wrong(
        "patch_model: no Transformers model",
        lambda _: patch_model(torch.nn.Sequential(torch.nn.Linear(2, 2)), "sparsemax"),
        TypeError,
        "expected a Transformers model, got Sequential",
    ),
    *(
        Wrong(
            f"{patch.__name__}: no Transformers model",
            lambda _, patch=patch: patch(torch.nn.Linear(2, 2), "softmax"),
            TypeError,
            "expected a Transformers model, got Linear",
        )
        for patch in (patch_lm_head, patch_multilabel_head)
    ),
    Wrong(
        "patch_lm_head: a sink",
        lambda _: patch_lm_head(BY_NAME["gpt2"].build("GPT2LMHeadModel"), "softmax", sink=0.0),
        ValueError,
        "mapping='softmax': its rows may sum to at most one.*output layer.*leave `sink` out",
    ),
    Wrong("head not linear", head_not_linear, ValueError, r"expected.*nn\.Linear, got Sequential"),
    no_output_embedding("bert", "BertModel"),
    no_output_embedding("bert", "BertForSequenceClassification"),
    no_output_embedding("gpt2", "GPT2ForSequenceClassification"),
    no_output_embedding("vit", "ViTModel"),
    no_last_layer("bert", "BertModel"),
    no_last_layer("bert", "BertForMaskedLM"),
    no_last_layer("bert", "BertForQuestionAnswering"),
    no_last_layer("bert", "BertForMultipleChoice", num_labels=5),
    no_last_layer("vit", "ViTForMaskedImageModeling"),
    Wrong(
        "attention: a mask of three dimensions",
        lambda _: attention(torch.ones(3, 9, 9, dtype=torch.bool)),
        ValueError,
        r"attention_mask: expected 4 dimensions.*\(3, 9, 9\)",
    ),
    Wrong(
        "weights of other keys",
        lambda _: patch_model(BERT.build(), "weighted-softmax", weights=[1.0, 2.0])(tokens()),
        ValueError,
        r"weights: shape \(2,\) does not broadcast to \(batch, heads, queries, keys\)",
    ),
    Wrong(
        "attention: position bias with softcap",
        lambda _: attention(None, position_bias=torch.zeros(9, 9), softcap=1.0),
        NotImplementedError,
        "position_bias and softcap together",
    ),
    Wrong(
        "patch_model: no module",
        lambda _: patch_model("bert", "sparsemax"),
        TypeError,
        "expected a Transformers model, got str",
    ),
    export("expected a name that ends in .pt2 or .onnx", path="model.pt", scores=torch.ones(2, 3)),
    export("there is no folder", UnwrittenError, path="no/model.pt2", scores=torch.ones(2, 3)),
    export("expected a module, got str", TypeError, model=str, scores=torch.ones(2, 3)),
    export(r"inputs: expected tensors by name.*return_tensors", TypeError, scores=[[1, 2]]),
]
