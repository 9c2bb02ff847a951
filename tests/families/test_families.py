"""Every family of Transformers, tiny: patched is eager, or refused by name.

A few families in every run, all of them in `make soak`, in the same way as for the record, which
`python -m tests.families` writes: what is not in the record of this version is held to the
properties alone.
"""

import json
import re
from typing import Any

import pytest
import transformers

from tests.families.__main__ import FOLDER
from tests.families.sweep import Row, classes, isolated, trial

RECORD = FOLDER / f"transformers-{transformers.__version__}.json"
CLOSE = 1e-4  # float64, beside eager attention that takes softmax in float32

# Who may compute softmax in an accepted model: none of it weighs keys.
ALLOWED = {
    r"Router$|Gating$|Gate$": "which experts a token goes to",
    r"^Glm5NextTextIndexer$": "which keys are asked at all, not their weights",
    r"HyperConnection$": "how residual streams mix",
    r"^DeepseekV4(CSACompressor|HCACompressor|Indexer)$": "how a window of keys becomes one",
    r"^GraniteSpeech5Encoder$": "CTC in the middle of the encoder",
    r"^Ovis2VisionModel$": "which visual words a patch is",
    r"^(SuperPointInterestPointDecoder|LightGlueMatchAssignmentLayer)$": "which pixels match",
    r"^Sam2MultiScaleAttention$": "thrown away: the class goes on to ask the interface",
}

# In every run: those that once kept softmax in some part, and those that look as if they did.
SAMPLE = [
    ("aria", "AriaModel", "refused"),
    ("bigbird_pegasus", "BigBirdPegasusModel", "refused"),
    ("bridgetower", "BridgeTowerModel", "refused"),
    ("chameleon", "ChameleonModel", "refused"),
    ("git", "GitModel", "refused"),
    ("kosmos-2.5", "Kosmos2_5Model", "refused"),
    ("nllb-moe", "NllbMoeModel", "refused"),
    ("pegasus_x", "PegasusXModel", "refused"),
    ("siglip_vision_model", "SiglipVisionModel", "refused"),
    ("deepseek_v32", "DeepseekV32Model", "refused at the call"),
    ("canary", "CanaryModel", "accepted"),
    ("doge", "DogeModel", "accepted"),
    ("flint", "FlintModel", "accepted"),
    ("granitemoe_swa", "GraniteMoeSWAModel", "accepted"),
    ("openai_privacy_filter", "OpenAIPrivacyFilterModel", "accepted"),
    ("llava", "LlavaModel", "accepted"),
    ("hy_v4", "HYV4Model", "refused"),
    ("deepseek_v4", "DeepseekV4Model", "accepted"),
    ("mixtral", "MixtralModel", "accepted"),
    ("moonshine", "MoonshineModel", "accepted"),
]


def check(row: Row) -> None:
    """An accepted class computes what it did, through us alone, can be had back, and saved."""
    assert row.verdict != "fails", row.reason
    if row.verdict != "accepted":
        assert row.reason
        return
    assert row.output < CLOSE
    assert row.gradient < 2 * CLOSE
    assert row.fused < CLOSE
    assert row.restored
    assert row.loaded == ""
    assert row.modules > row.unreached
    assert [c for c in row.elsewhere if not any(re.search(name, c) for name in ALLOWED)] == []


@pytest.mark.filterwarnings("ignore")  # of any family
@pytest.mark.parametrize(("kind", "cls", "verdict"), SAMPLE, ids=[kind for kind, _, _ in SAMPLE])
def test_sample(kind: str, cls: str, verdict: str) -> None:
    if not hasattr(transformers, cls):
        pytest.skip(f"Transformers {transformers.__version__} has no {cls}")
    row = trial(kind, cls)
    check(row)
    assert row.verdict == verdict, row
    assert row.record() == recorded().get(kind, {}).get(cls, row.record())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "cls"),
    [
        ("bridgetower", "BridgeTowerModel"),  # nn.MultiheadAttention; eager weights of its own
        ("nllb-moe", "NllbMoeModel"),  # a router that reads the mask of attention
        ("siglip_vision_model", "SiglipVisionModel"),  # nn.MultiheadAttention that pools
    ],
)
def test_sweep_sees_what_is_not_refused(
    kind: str, cls: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the refusals, which read source, the numbers and the operators tell."""
    for place in ("patching", "saved"):
        monkeypatch.setattr(f"sparse_attn.hf.{place}.refuse", lambda root, found: None)
    row = trial(kind, cls)
    assert row.verdict == "accepted"
    with pytest.raises(AssertionError):
        check(row)


@pytest.mark.soak
@pytest.mark.parametrize("kind", classes())
def test_family(kind: str) -> None:
    known = recorded().get(kind, {})
    for cls in classes()[kind]:
        row = isolated(kind, cls)
        check(row)
        if cls in known and not row.reason.startswith("over"):  # a slow machine tries fewer
            assert row.record() == known[cls], row


def recorded() -> dict[str, Any]:
    return json.loads(RECORD.read_text())["families"] if RECORD.exists() else {}


def test_record_covers_the_families() -> None:
    """What `classes` finds is in the record, and most of it was run."""
    path = max(FOLDER.glob("*.json"))
    rows = [
        row for some in json.loads(path.read_text())["families"].values() for row in some.values()
    ]
    verdicts = [row["verdict"] for row in rows]
    assert verdicts.count("accepted") > 500
    assert verdicts.count("not tried") < len(rows) / 5
    for row in rows:
        if row["verdict"] == "accepted":
            names = row.get("elsewhere", ())
            assert all(any(re.search(a, name) for a in ALLOWED) for name in names), row
