"""Pretrained ResNets: what they give, and what is said where they cannot be had."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import AutoModel, AutoModelForImageClassification

from experiments.multilabel.backbones import resnet
from experiments.multilabel.config import MethodConfig, MultilabelRunConfig, TrainConfig
from experiments.multilabel.data.config import DataConfig, ImageConfig
from experiments.multilabel.data.images import load_images
from experiments.multilabel.models import build_model, head_of
from experiments.multilabel.run import load
from tests.experiments.multilabel.tiny import tiny_resnet, train


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_resnet(tmp_path_factory.mktemp("tiny-resnet")))


def test_a_resnet_of_transformers_gives_what_its_classifier_reads(folder: str) -> None:
    backbone, hidden = resnet(folder)
    whole = AutoModelForImageClassification.from_pretrained(folder).eval()
    pixels = torch.randn(3, 3, 32, 32)
    found = backbone.eval()(pixels)
    assert found.shape == (3, hidden) == (3, 16)
    torch.testing.assert_close(whole.classifier(found), whole(pixels).logits)


def test_16_bits_are_cast_for_training(folder: str, tmp_path: Path) -> None:
    AutoModel.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(tmp_path)
    backbone, _ = resnet(str(tmp_path))
    assert {weight.dtype for weight in backbone.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    "method",
    [MethodConfig("r-softmax", sparsity="predicted"), MethodConfig("sigmoid")],
    ids=["r-softmax", "sigmoid"],
)
def test_every_weight_of_the_network_learns(folder: str, method: MethodConfig) -> None:
    data = DataConfig(images=ImageConfig("voc2007", data_dir="unused", backbone=folder))
    model = build_model(data, method, 4).train()
    labels = torch.tensor([[1.0, 0, 1, 0], [0, 0, 0, 1]])
    model(inputs=torch.randn(2, 3, 32, 32), labels=labels).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    with torch.no_grad():
        assert model.eval()(inputs=torch.randn(2, 3, 32, 32)).logits.shape == (2, 4)


def test_a_run_on_images_of_ones_own(folder: str, tmp_path: Path) -> None:
    colours = {"r": (200, 0, 0), "g": (0, 200, 0), "rg": (200, 200, 0), "b": (0, 0, 200)}
    for split in ("train", "validation"):
        for name, colour in colours.items():
            (tmp_path / split).mkdir(exist_ok=True)
            Image.new("RGB", (9, 9), colour).save(tmp_path / split / f"{name}.png")
        table = "file,red,green,blue\nr.png,1,0,0\ng.png,0,1,0\nrg.png,1,1,0\nb.png,0,0,1\n"
        (tmp_path / split / "labels.csv").write_text(table)
    run = MultilabelRunConfig(
        images=ImageConfig(
            "folder", data_dir=str(tmp_path), dataset="colours", backbone=folder, size=32
        ),
        output_dir=str(tmp_path / "run"),
        method=MethodConfig("r-softmax", sparsity="predicted"),
        train=TrainConfig(epochs=30, batch_size=4, learning_rate=0.01, device="cpu"),
    )
    results = train(run)
    assert (results["measured_on"], results["labels"]) == ("validation", ["red", "green", "blue"])
    assert results["score"] == results["f1"]["micro"] == 1
    data = load_images(run.images)
    batch = data.collate([data.validation[i] for i in range(4)])
    model = load(run.output_dir)
    with torch.no_grad():
        decided = head_of(model).decide(model(batch["inputs"]).logits)
    assert torch.equal(decided, batch["labels"].bool())


def torchvision_models() -> object:
    """torchvision.models, where it can be imported: some builds need libraries of a GPU."""
    try:
        from torchvision import models
    except Exception as error:
        pytest.skip(f"torchvision cannot be imported ({type(error).__name__}: {error})")
    return models


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    models = torchvision_models()
    torch.save(models.resnet18(weights=None).state_dict(), tmp_path / "resnet18.pth")
    return tmp_path / "resnet18.pth"


def test_a_resnet_of_torchvision_has_the_weights_of_the_file(weights: Path) -> None:
    whole = torchvision_models().resnet18(weights=None)
    whole.load_state_dict(torch.load(weights, weights_only=True))
    backbone, hidden = resnet("torchvision://resnet18", str(weights))
    pixels = torch.randn(2, 3, 64, 64)
    found = backbone.eval()(pixels)
    assert found.shape == (2, hidden) == (2, 512)
    torch.testing.assert_close(whole.eval().fc(found), whole(pixels))


def test_what_is_wrong_with_a_backbone_of_torchvision(weights: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="backbone=torchvision://resnet19: expected one of resnet"):
        resnet("torchvision://resnet19", str(weights))
    with pytest.raises(FileNotFoundError, match=r"none.pth: no such file"):
        resnet("torchvision://resnet18", str(tmp_path / "none.pth"))
    torch.save({"fc.weight": torch.zeros(2)}, weights)
    with pytest.raises(ValueError, match=r"resnet18.pth: not a state dict of this network"):
        resnet("torchvision://resnet18", str(weights))
