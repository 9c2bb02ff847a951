"""What attention, schedules, loading, heads and export refuse."""

import torch
from transformers import AutoModel, BertConfig

from sparse_attn import (
    Mapping,
    SparsitySchedule,
    SparsityScheduleCallback,
    export_model,
    kernels,
    load_pretrained,
    patch_lm_head,
    patch_model,
    patch_multilabel_head,
)
from sparse_attn.hf.attention import sparse_attention
from sparse_attn.hf.layers import AttentionLayer
from sparse_attn.hf.patching import make_mapping
from sparse_attn.system.files import UnwrittenError
from tests.bad_input import Wrong

from .families import BY_NAME, tokens
from .lm_heads import BY_MODEL

BERT = BY_NAME["bert"]


def refused(name, says, call, error=ValueError):
    return Wrong(name, lambda _: call(), error, says)


def patched(says, mapping, error=ValueError, model="bert", **arguments):
    return refused(
        f"patch_model: {mapping} {arguments} of {model}",
        says,
        lambda: patch_model(BY_NAME[model].build(), mapping, **arguments),
        error,
    )


def sinks_unseen():
    """A model whose attention holds what looks like a sink, and passes none."""
    model = BY_NAME["llama"].build()
    model.layers[1].self_attn.register_buffer("sinks", torch.zeros(4))
    return patch_model(model, "softmax")


def by_query(says, query_size, x, heads=1):
    """attention() with 2 queries of one head."""
    mapping = Mapping("scaled-softmax", num_heads=heads, query_size=query_size)
    q = torch.ones(1, 1, 2, 4)
    name = f"query_input of {query_size}, {heads} heads"
    return refused(name, says, lambda: kernels.attention(q, q, q, mapping, query_input=x))


class Renamed(torch.nn.Module):
    config = BertConfig(num_attention_heads=1)

    def forward(self, query):
        return query


def attention(mask, **more):
    layer = patch_model(BERT.build(), "softmax").encoder.layer[0].attention.self
    query = torch.randn(3, 4, 9, 4)
    return sparse_attention(layer, query, query, query, mask, **more)


def load_plain(folder):
    BERT.build().save_pretrained(folder)
    load_pretrained(AutoModel, folder)


def loaded(says, error, *arguments, **more):
    name = f"load_pretrained of {says}"
    return refused(name, says, lambda: load_pretrained(*arguments, **more), error)


def schedule(says, error=ValueError, **arguments):
    name = f"SparsitySchedule: {arguments}"
    return refused(name, says, lambda: SparsitySchedule(**arguments), error)


def apply(schedule, model, mapping=None, **arguments):
    schedule.apply(patch_model(model, mapping, **arguments) if mapping else model, 0.5)


def head_not_linear():
    model = BY_MODEL["gpt2"].build()
    model.lm_head = torch.nn.Sequential(model.lm_head)
    patch_lm_head(model, "sigsoftmax")


def head(patch, says, family, cls, **changes):
    return refused(
        f"{patch.__name__}: {cls} {changes}",
        says,
        lambda: patch(BY_NAME[family].build(cls), "softmax", **changes),
    )


def export(says, error=ValueError, path="model.pt2", model=Mapping, **inputs):
    """The rows of one mapping, which are to be written to `path` in an empty folder."""
    return Wrong(
        f"export_model: {says}",
        lambda folder: export_model(model("sparsemax"), folder / path, inputs),
        error,
        says,
    )


ROWS = [
    refused("patch_model: model", "Transformers", lambda: patch_model("bert", "relu"), TypeError),
    patched("per='query'.*scaled-entmax", "entmax", per="query"),
    patched("query_size=7", "scaled-entmax", TypeError, per="query", query_size=7),
    patched("sink: .*leave sink out", "softmax", model="gpt-oss", sink=0.0),
    patched("sink: .*leave sink out", "softmax", model="gpt-oss", learn="sink", per="head"),
    patched("mapping='sigmoid'.*has attention sinks", "sigmoid", model="gpt-oss"),
    patched("mapping='weighted-softmax'", "weighted-softmax", model="gpt-oss"),
    patched("mapping='scaled-relu'", "scaled-relu", model="gpt-oss"),
    patched("sink: relu cannot have one", "relu", sink=0.0),
    refused("patch_model: sinks not passed", r"layers\.1\.self_attn\.sinks", sinks_unseen),
    refused(
        "patch_model: a module without hidden_states",
        "takes query and not hidden_states",
        lambda: make_mapping(AttentionLayer("a", 0, Renamed()), "scaled-relu", per="query"),
    ),
    by_query("query_input: scaled-softmax does not depend", None, torch.ones(1, 2, 3)),
    by_query("query_size.*got None", 3, None),
    by_query("num_heads=1.*got 2", 3, torch.ones(1, 2, 3), heads=2),
    refused(
        "attention: mask",
        "attention_mask: expected .* 4 dimensions",
        lambda: attention(torch.ones(3, 9, 9, dtype=torch.bool)),
    ),
    refused(
        "attention: position bias with softcap",
        "position_bias and softcap",
        lambda: attention(None, position_bias=torch.zeros(9, 9), softcap=1.0),
        NotImplementedError,
    ),
    refused(
        "attention: weights of other keys",
        r"weights: shape \(2,\)",
        lambda: patch_model(BERT.build(), "weighted-softmax", weights=[1.0, 2.0])(tokens()),
    ),
    Wrong("load_pretrained: a plain model", load_plain, ValueError, "has neither"),
    loaded("cls='/tmp'.*before the path", TypeError, "/tmp", AutoModel),
    loaded("path='/nowhere'", ValueError, AutoModel, "/nowhere"),
    loaded("path=None", TypeError, BERT.build(), None),
    schedule("shape='square'", shape="square"),
    schedule("begin <= end", begin=0.6, end=0.4),
    schedule("begin='a'", TypeError, begin="a"),
    schedule("initial=inf", parameter="t", initial=torch.inf, final=2.0),
    schedule("final=nan", final=torch.nan),
    schedule("final=None", TypeError, final=None),
    schedule("parameter=3", TypeError, parameter=3),
    refused("value of a schedule", "fraction", lambda: SparsitySchedule().value(1.01)),
    refused(
        "schedule of a learned parameter",
        "parameter='t'",
        lambda: apply(SparsitySchedule("t", 1.0, 2.0), BERT.build(), "t-softmax", learn="t"),
    ),
    refused("schedule", "patch the model", lambda: apply(SparsitySchedule(), BERT.build())),
    refused("callback", "schedule='r'", lambda: SparsityScheduleCallback("r"), TypeError),
    head(patch_lm_head, "sink", "gpt2", "GPT2LMHeadModel", sink=0.0),
    head(patch_lm_head, "unpatchable head", "bert", "BertModel"),
    head(patch_lm_head, "unpatchable head", "gpt2", "GPT2ForSequenceClassification"),
    head(patch_multilabel_head, "num_labels", "bert", "BertForMaskedLM"),
    head(patch_multilabel_head, "num_labels", "vit", "ViTForMaskedImageModeling"),
    refused("patch_lm_head: head not linear", r"nn\.Linear, got Sequential", head_not_linear),
    *(
        refused(f"{p.__name__}: model", "Transformers", lambda p=p: p(None, "softmax"), TypeError)
        for p in (patch_lm_head, patch_multilabel_head)
    ),
    export("path=.*ends in .pt2", path="model.pt", scores=torch.ones(2, 3)),
    export("there is no folder", UnwrittenError, path="no/model.pt2", scores=torch.ones(2, 3)),
    export("model: .*got str", TypeError, model=str, scores=torch.ones(2, 3)),
    export("inputs: ", TypeError, scores=[[1, 2]]),
]
