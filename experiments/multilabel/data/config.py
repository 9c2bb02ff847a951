"""Configs of the three kinds of data sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from engine.config import check_fields
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
    """Images and a pretrained convolutional network.

    Args:
        source: voc2007 and coco2017: as distributed; folder: your own, with train/labels.csv,
            validation/labels.csv and optionally test/labels.csv beside the images: the file name,
            then one 0/1 column per label; hub: a data set on the hub.
        data_dir: the folder that holds VOCdevkit; annotations, train2017 and val2017; or train and
            validation.
        dataset: hub id, or a folder that `datasets` reads; with source folder, a name that
            identifies the data in records.
        image_column: column of images (hub).
        label_column: column with a list of labels per row (hub).
        validation_split: validation split, such as validation, test or "train[90%:]" (hub).
        train_split: training split (hub).
        backbone: torchvision://resnet18 and the like, or hub id or folder of a Transformers model.
        weights: state dict file for a torchvision backbone; pretrained by default.
        size: height and width to resize images to.
    """

    source: Literal["voc2007", "coco2017", "folder", "hub"]
    data_dir: str | None = None
    dataset: str | None = None
    image_column: str = "image"
    label_column: str = "labels"
    train_split: str = "train"
    validation_split: str = "validation"
    backbone: str = "torchvision://resnet18"
    weights: str | None = None
    size: int = 224

    def __post_init__(self) -> None:
        source = self.source
        named = self.dataset is not None or source in ("voc2007", "coco2017")
        check_fields(
            self,
            "images",
            dataset=(named, f"a name, which source={source} needs"),
            counts=("size",),
        )

    @property
    def uses_hub(self) -> bool:
        """Whether data or model are downloaded from the hub."""
        from_hub = self.source == "hub" and is_hub_id(str(self.dataset))
        return from_hub or is_hub_id(self.backbone)


@dataclass(frozen=True)
class TextConfig:
    """Texts and a pretrained Transformer.

    Args:
        source: folder: your own files train, validation and optionally test (.csv, .tsv or
            .jsonl); glue: a GLUE classification task, with one label per row: validation is a
            tenth of the training rows, test the dev set; hub: a data set on the hub.
        model: hub id, folder, or pkg://package/folder for weights in an installed package.
        data_dir: the folder, or the GLUE download; GLUE comes from the hub by default.
        dataset: GLUE task; hub id, or a folder that `datasets` reads; with source folder, a name
            that identifies the data in records.
        text: column of the text, or two columns for pairs (folder, hub).
        label_column: column with all labels of a row, as a list or names joined by separator
            (folder, hub); by default, every column except text is a 0/1 label.
        separator: separator of names in label_column.
        train_split: training split (hub).
        validation_split: validation split, such as validation, test or "train[90%:]" (hub).
        train_rows: number of training rows to use, the same in every run; all by default.
        max_length: truncate rows to this many tokens.
    """

    source: Literal["folder", "glue", "hub"]
    model: str
    data_dir: str | None = None
    dataset: str | None = None
    text: list[str] = field(default_factory=lambda: ["text"])
    label_column: str | None = None
    separator: str = ","
    train_split: str = "train"
    validation_split: str = "validation"
    train_rows: int | None = None
    max_length: int = 128

    def __post_init__(self) -> None:
        source = self.source
        check_fields(
            self,
            "text",
            dataset=(self.dataset is not None, f"a name, which source={source} needs"),
            label_column=(self.label_column is not None or source != "hub", "a column of lists"),
            text=(
                0 < len(set(self.text)) == len(self.text) < 3,
                "one column, or two different ones",
            ),
            separator=(bool(self.separator), "a text, such as ','"),
            max_length=(self.max_length > 2, "at least 3"),
        )

    @property
    def uses_hub(self) -> bool:
        """Whether data or model are downloaded from the hub."""
        from_hub = self.source == "hub" and is_hub_id(str(self.dataset))
        glue = self.source == "glue" and self.data_dir is None
        return from_hub or glue or is_hub_id(self.model)


KINDS = {"synthetic": SyntheticConfig, "images": ImageConfig, "text": TextConfig}


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """A data set and its network; exactly one of these.

    Args:
        synthetic: rows drawn by scikit-learn, and a two-layer network.
        images: images, and a convolutional network.
        text: texts, and a Transformer.
    """

    synthetic: SyntheticConfig | None = None
    images: ImageConfig | None = None
    text: TextConfig | None = None

    def __post_init__(self) -> None:
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"data: expected one of {', '.join(KINDS)}, got {' and '.join(given) or 'none'}"
            )

    @property
    def uses_hub(self) -> bool:
        """Whether data or network are downloaded from the hub."""
        sections = (self.images, self.text)
        return any(section is not None and section.uses_hub for section in sections)
