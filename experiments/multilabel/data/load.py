"""From the config of a data set to its rows."""

from __future__ import annotations

from experiments.multilabel.data.base import LabelledData
from experiments.multilabel.data.config import DataConfig


def load_data(config: DataConfig, seed: int) -> LabelledData:
    """Read the data set; the seed draws synthetic rows, other data sets have none.

    Raises:
        ValueError, OSError: what is wrong with the config or the files.
    """
    # each kind needs an extra or a slow import of its own
    if config.synthetic is not None:
        from experiments.multilabel.data.synthetic import load_synthetic

        return load_synthetic(config.synthetic, seed)
    if config.images is not None:
        from experiments.multilabel.data.images import load_images

        return load_images(config.images)
    assert config.text is not None  # one of three, as the config has checked
    from experiments.multilabel.data.text import load_text

    return load_text(config.text)
