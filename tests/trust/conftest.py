"""A tiny BERT, data of GLUE, and the command line of a run of both."""

from tests.glue.conftest import asked, glue_folder, tiny_model

__all__ = ["asked", "glue_folder", "tiny_model"]
