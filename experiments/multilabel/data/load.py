"""From the config of a run to its data."""

from __future__ import annotations

from experiments.multilabel.config import DataConfig
from experiments.multilabel.data.base import LabelledData


def load_data(config: DataConfig, seed: int) -> LabelledData:
    """Read the data set; the seed draws synthetic rows, other data sets have none.

    Raises:
        ValueError, OSError: what is wrong with the config or the files.
    """
    if config.synthetic is not None:
        from experiments.multilabel.data.synthetic import load_synthetic

        return load_synthetic(config.synthetic, seed)
    # imports of extras
    if config.images is not None:
        from experiments.multilabel.data.images import load_images

        return load_images(config.images)
    assert config.text is not None  # one of three, as the config has checked
    from experiments.multilabel.data.text import load_text

    return load_text(config.text)
