"""Configs of data sets, of three kinds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pipeline.config import check_fields
from pipeline.hub import is_hub_id


@dataclass(frozen=True)
class SyntheticConfig:
    """`sklearn.datasets.make_multilabel_classification`, and a two-layer network for it.

    Args:
        classes: number of labels n.
        labels: mean of the number of labels of a row, Poisson, before those above n are drawn
            again; 0 occurs.
        length: mean of the sum of a row's features, its length as a document.
        rows: all of them.
        features: number of words counted in each row.
        validation: share of the rows that is held out to choose the epoch and the threshold.
        test: share of the rows that is held out to the end.
        hidden: units of the network's hidden layer.
    """

    classes: int = 20
    labels: int = 5
    length: int = 2000
    rows: int = 5000
    features: int = 128
    validation: float = 0.1
    test: float = 0.2
    hidden: int = 128

    def __post_init__(self) -> None:
        check_fields(
            self,
            "synthetic",
            classes=(self.classes > 1, "at least 2"),
            labels=(0 < self.labels <= self.classes, f"1 to {self.classes}, the classes"),
            counts=("length", "features", "hidden"),
            validation=(0 < self.validation < 1, "a share in (0, 1)"),
            test=(0 < self.test < 1 - self.validation, "a share that leaves rows to train on"),
            rows=(min(self.parts) > 0, "enough for one row in every part"),
        )

    @property
    def parts(self) -> tuple[int, int, int]:
        """Rows of the training, validation and test set."""
        test, validation = (round(self.rows * share) for share in (self.test, self.validation))
        return self.rows - validation - test, validation, test


@dataclass(frozen=True)
class ImageConfig:
    """Images and a pretrained convolutional network.

    Args:
        source: voc2007 and coco2017: as distributed; folder: your own, train/labels.csv and
            validation/labels.csv (test/labels.csv too, if there is one) beside the images, first
            column the file and one 0/1 column for each label; hub: a data set of the hub.
        data_dir: the folder that holds VOCdevkit; annotations, train2017 and val2017; or train and
            validation.
        dataset: id of the hub's data set, or a folder that `datasets` reads; for a folder of one's
            own the name that tells its runs from those of another.
        image_column: of the hub's data set.
        label_column: of the hub's data set, a list of labels in each row.
        validation_split: of the hub's data set, such as validation, test or "train[90%:]".
        train_split: of the hub's data set.
        backbone: torchvision://resnet18 and the like, or hub id or folder of a Transformers model.
        weights: file of a state dict for a torchvision backbone; the pretrained ones by default.
        size: height and width that every image is scaled to.
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
        """Whether data or model come from the hub."""
        from_hub = self.source == "hub" and is_hub_id(str(self.dataset))
        return from_hub or is_hub_id(self.backbone)


@dataclass(frozen=True)
class TextConfig:
    """Texts and a pretrained Transformer.

    Args:
        source: folder: your own, with the files train, validation and, if there is one, test,
            each .csv, .tsv or .jsonl; glue: a classification task of GLUE, whose rows have one
            label each: validation is a tenth of the training rows, test its dev set; hub: a data
            set of the hub.
        model: hub id, folder, or pkg://package/folder for weights that an installed package
            carries.
        data_dir: the folder, or that of the GLUE download; for GLUE the hub by default.
        dataset: the GLUE task; id of the hub's data set, or a folder that `datasets` reads; for a
            folder of one's own the name that tells its runs from those of another.
        text: of a folder or the hub: the column that holds the text, or two for pairs.
        label_column: of a folder or the hub: the column that holds all labels of a row, a list or
            names joined by `separator`; by default, every column but text is a label, 0 or 1.
        separator: of the names in label_column.
        train_split: of the hub's data set.
        validation_split: of the hub's data set, such as validation, test or "train[90%:]".
        train_rows: use this many training rows, the same in every run; all by default.
        max_length: tokens of a row at most; what is beyond is cut off.
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
        """Whether data or model come from the hub."""
        from_hub = self.source == "hub" and is_hub_id(str(self.dataset))
        glue = self.source == "glue" and self.data_dir is None
        return from_hub or glue or is_hub_id(self.model)


KINDS = {"synthetic": SyntheticConfig, "images": ImageConfig, "text": TextConfig}


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """A data set and the network for it: exactly one of these.

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
        """Whether data or network come from the hub."""
        sections = (self.images, self.text)
        return any(section is not None and section.uses_hub for section in sections)
