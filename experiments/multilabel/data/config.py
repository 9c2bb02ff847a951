"""Configs of the two kinds of data sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparse_attn.engine.config import check_fields
from sparse_attn.system.hub import is_hub_id


@dataclass(frozen=True)
class SyntheticConfig:
    """`sklearn.datasets.make_multilabel_classification`, and a two-layer network for it.

    Args:
        classes: number of labels n.
        labels: mean number of labels per row; Poisson, redrawn above n, may be 0.
        length: mean document length, the sum of a row's features.
        rows: number of rows in all parts.
        features: number of features, counts of words.
        validation: share of rows held out to choose the epoch and the threshold.
        test: share of rows held out for the final evaluation.
        hidden: size of the network's hidden layer.
        standardize: shift and scale each feature to mean 0 and variance 1 over the training rows.
    """

    classes: int = 20
    labels: int = 5
    length: int = 2000
    rows: int = 5000
    features: int = 128
    validation: float = 0.1
    test: float = 0.2
    hidden: int = 128
    standardize: bool = True

    def __post_init__(self) -> None:
        check_fields(
            self,
            "synthetic",
            classes=(self.classes > 1, "at least 2"),
            labels=(0 < self.labels <= self.classes, f"1 to {self.classes}, the classes"),
            counts=("length", "features", "hidden"),
            validation=(0 < self.validation < 1, "a share in (0, 1)"),
            test=(0 < self.test < 1 - self.validation, "a share that leaves training rows"),
            rows=(min(self.parts) > 0, "enough for one row in every part"),
        )

    @property
    def parts(self) -> tuple[int, int, int]:
        """Number of training, validation and test rows."""
        test, validation = (round(self.rows * share) for share in (self.test, self.validation))
        return self.rows - validation - test, validation, test


@dataclass(frozen=True)
class ImageConfig:
    """Images and a pretrained ResNet.

    Args:
        source: voc2007 or coco2017.
        data_dir: the folder that holds VOCdevkit; or annotations, train2017 and val2017.
        backbone: hub id or folder of a convolutional Transformers model.
        size: height and width to resize images to.
    """

    source: Literal["voc2007", "coco2017"]
    data_dir: str = "."
    backbone: str = "microsoft/resnet-18"
    size: int = 224

    def __post_init__(self) -> None:
        check_fields(self, "images", counts=("size",))


KINDS = {"synthetic": SyntheticConfig, "images": ImageConfig}


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """A data set and its network; exactly one of these.

    Args:
        synthetic: rows drawn by scikit-learn, and a two-layer network.
        images: images, and a convolutional network.
    """

    synthetic: SyntheticConfig | None = None
    images: ImageConfig | None = None

    def __post_init__(self) -> None:
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"data: expected one of {', '.join(KINDS)}, got {' and '.join(given) or 'none'}"
            )

    @property
    def uses_hub(self) -> bool:
        """Whether the network is downloaded from the hub."""
        return self.images is not None and is_hub_id(self.images.backbone)
