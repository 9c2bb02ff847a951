"""The packages of the wheel: pyproject.toml cannot say that glue becomes sparse_attn.glue."""

from setuptools import find_packages, setup

GLUE = ["sparse_attn.glue", *(f"sparse_attn.glue.{name}" for name in find_packages("glue"))]

setup(
    packages=[*find_packages(include=["sparse_attn*"]), *GLUE],
    package_dir={"sparse_attn.glue": "glue"},
)
