"""Pretrained ResNets to go under a head."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from sparse_attn.hf.opening import corrupt_weights

TORCHVISION = "torchvision://"
WEIGHTS = "IMAGENET1K_V1"  # available for every ResNet; torchvision's default differs by network


class Pooled(nn.Module):
    """The pooled features of a convolutional Transformers model.

    Args:
        model: returns a `pooler_output` [B, hidden, 1, 1].
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, 3, height, width] to [B, hidden]."""
        return self.model(pixel_values=inputs).pooler_output.flatten(1)


def resnet(name: str, weights: str | None = None) -> tuple[nn.Module, int]:
    """A pretrained network without its output layer, and the size of its output [B, hidden].

    Args:
        name: torchvision://resnet18, torchvision://resnet101 and the like, or the hub id or folder
            of a convolutional Transformers model, such as microsoft/resnet-18.
        weights: state dict file for a torchvision network; its ImageNet weights by default.

    Raises:
        ModuleNotFoundError: torchvision is not installed.
        ValueError, OSError: unknown network, or unavailable weights.
    """
    if name.startswith(TORCHVISION):
        return _torchvision(name.removeprefix(TORCHVISION), weights)
    if weights is not None:
        raise ValueError(
            f"weights={weights}: only for {TORCHVISION}resnet18 and the like; {name} has its own"
        )
    with corrupt_weights(f"backbone={name!r}"):
        model = AutoModel.from_pretrained(name, dtype=torch.float32)  # to be trained
    sizes = getattr(model.config, "hidden_sizes", None)
    if not sizes or model.main_input_name != "pixel_values":
        raise ValueError(
            f"backbone={name!r}: {type(model).__name__} is not a convolutional network with a "
            "pooled output; expected one such as microsoft/resnet-18"
        )
    return Pooled(model), sizes[-1]


def _torchvision(name: str, weights: str | None) -> tuple[nn.Module, int]:
    # an extra of this project
    from torchvision import models  # type: ignore[import-not-found]

    known = models.list_models(models, ["resnet*", "resnext*", "wide_resnet*"])
    if name not in known:
        raise ValueError(f"backbone={TORCHVISION}{name}: expected one of {', '.join(known)}")
    network = models.get_model(name, weights=None)
    if weights is None:
        try:
            # get_model would unpickle arbitrary code
            state = models.get_model_weights(name)[WEIGHTS].get_state_dict(
                check_hash=True, weights_only=True
            )
        except OSError as error:
            raise ConnectionError(
                f"could not get the weights {WEIGHTS} of {name} ({error}); offline, pass a "
                "state dict file as weights"
            ) from error
        network.load_state_dict(state)
    else:
        _load(network, Path(weights))
    hidden = network.fc.in_features
    network.fc = nn.Identity()
    return network, hidden


def _load(network: nn.Module, file: Path) -> None:
    if not file.is_file():
        raise FileNotFoundError(f"weights={file}: no such file")
    try:
        network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    except Exception as error:  # the type depends on the damage to the file
        reason = str(error).splitlines()[0]
        raise ValueError(f"weights={file}: not a state dict of this network ({reason})") from error
