"""Layers and heads of a patched model in another one: a save keeps the mapping, or raises."""

import copy

import pytest
import torch
from transformers import AutoModel, BertForSequenceClassification, BertModel

from sparse_attn import load_pretrained, patch_model
from sparse_attn.heads import patch_lm_head, patch_multilabel_head
from sparse_attn.inspection import record_attention

from .families import BY_NAME
from .helpers import learning, mappings_of

BERT = BY_NAME["bert"]
MESSAGE = r"{} has a mapping, but {} was not patched by {}: .*copy it from an unpatched model"


def student_of(teacher, config=None, twin=copy.deepcopy):
    config = config or BERT.build(num_hidden_layers=2).config
    student = type(teacher)(config).eval()
    for i, j in enumerate((1, 3)):
        student.encoder.layer[i] = twin(teacher.encoder.layer[j])
    return student


@pytest.fixture
def teacher():
    return learning(BERT.build(num_hidden_layers=4))


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda layer: layer], ids=["copied", "shared"])
@pytest.mark.parametrize("alive", [True, False])
def test_a_student_of_patched_layers_is_not_saved_as_a_plain_model(twin, alive, teacher, tmp_path):
    student = student_of(teacher, twin=twin)
    assert len(list(mappings_of(student))) == 2
    if not alive:
        del teacher
    message = MESSAGE.format(r"encoder\.layer\.0\.attention\.self", "BertModel", "patch_model")
    with pytest.raises(RuntimeError, match=message):
        student.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_student_inside_a_whole_is_not_saved_as_a_plain_model(teacher, tmp_path):
    whole = BertForSequenceClassification(BERT.build(num_hidden_layers=2).config)
    whole.bert = student_of(teacher)
    with pytest.raises(RuntimeError, match=r"bert\.encoder\.layer\.0\.attention\.self has a mapp"):
        whole.save_pretrained(tmp_path)


def test_a_student_with_the_config_of_its_teacher_is_saved_as_it_is(teacher, tmp_path):
    config = copy.deepcopy(teacher.config)
    config.num_hidden_layers = 2
    student = student_of(teacher, config)
    student.save_pretrained(tmp_path)
    assert torch.equal(BERT.hidden(load_pretrained(AutoModel, tmp_path)), BERT.hidden(student))


def test_a_copied_part_is_saved_as_it_is_now(tmp_path):
    whole = patch_model(BERT.build("BertForSequenceClassification"), "r-softmax", r=0.1)
    part = copy.deepcopy(whole.bert)
    for mapping in mappings_of(part):
        mapping.set_value("r", 0.6)
    part.save_pretrained(tmp_path)
    assert torch.equal(BERT.hidden(load_pretrained(BertModel, tmp_path)), BERT.hidden(part))


@pytest.mark.parametrize(
    ("patch", "cls", "head"),
    [
        (lambda model: patch_lm_head(model, "sigsoftmax", bias=0.5), "BertForMaskedLM", "cls"),
        (
            lambda model: patch_multilabel_head(model, "sparsemax"),
            "BertForSequenceClassification",
            "classifier",
        ),
    ],
)
@pytest.mark.parametrize("twin", [copy.deepcopy, lambda layer: layer], ids=["copied", "shared"])
def test_a_patched_head_in_another_model_is_not_saved_as_a_plain_one(
    twin, patch, cls, head, tmp_path
):
    teacher, student = patch(BERT.build(cls)), BERT.build(cls)
    student.set_submodule(head, twin(teacher.get_submodule(head)))
    with pytest.raises(RuntimeError, match=rf"{head}.* has a mapping, but {cls} was not patched"):
        student.save_pretrained(tmp_path)
    teacher.save_pretrained(tmp_path)


def test_a_recorded_model_is_saved_as_a_plain_one(tmp_path):
    model = BERT.build("BertForSequenceClassification")
    with record_attention(model):
        model.save_pretrained(tmp_path / "whole")
        model.bert.save_pretrained(tmp_path / "part")
    for folder in ("whole", "part"):
        assert BERT.hidden(AutoModel.from_pretrained(tmp_path / folder)).isfinite().all()
