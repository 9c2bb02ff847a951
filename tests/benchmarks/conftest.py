"""The tiny model and the tiny GLUE folder of the pipeline's tests."""

from tests.glue.conftest import glue_folder, tiny_model

__all__ = ["glue_folder", "tiny_model"]
