"""Layers and heads of a patched model in another one: they compute their mapping, and what is
saved of it raises when it is loaded."""

import copy

import pytest
import torch
from transformers import AutoModel

from sparse_attn import patch_lm_head, patch_model, patch_multilabel_head

from .families import BY_NAME
from .helpers import learning

BERT = BY_NAME["bert"]
PARTS = {
    "attention": ("BertModel", learning, "encoder"),
    "without values": ("BertModel", lambda m: patch_model(m, "sparsemax"), "encoder"),
    "in a whole": ("BertForSequenceClassification", learning, "bert"),
    "LM head": ("BertForMaskedLM", lambda m: patch_lm_head(m, "sigsoftmax", bias=0.5), "cls"),
    "classifier": (
        "BertForSequenceClassification",
        lambda m: patch_multilabel_head(m, "sparsemax"),
        "classifier",
    ),
}


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda part: part], ids=["copied", "shared"])
@pytest.mark.parametrize("kind", PARTS)
def test_a_part_of_a_patched_model_in_a_plain_one(kind, twin, tmp_path):
    cls, patch, place = PARTS[kind]
    teacher, student = patch(BERT.build(cls)), BERT.build(cls)
    student.set_submodule(place, twin(teacher.get_submodule(place)))
    with torch.no_grad():
        assert torch.equal(student(**BERT.example)[0], teacher(**BERT.example)[0])
    student.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="the config describes no mapping"):
        type(student).from_pretrained(tmp_path)


def test_a_student_with_the_config_of_its_teacher_comes_back(tmp_path):
    teacher = learning(BERT.build(num_hidden_layers=4))
    config = copy.deepcopy(teacher.config)
    config.num_hidden_layers = 2
    student = type(teacher)(config).eval()
    for i, j in enumerate((1, 3)):
        student.encoder.layer[i] = copy.deepcopy(teacher.encoder.layer[j])
    student.save_pretrained(tmp_path)
    assert torch.equal(BERT.hidden(AutoModel.from_pretrained(tmp_path)), BERT.hidden(student))
