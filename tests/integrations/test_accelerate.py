"""The recipe of docs/guide/works-with.md in two processes: the model that one process trains."""

import pytest
import torch
from safetensors.torch import load_file

from tests.commands import ROOT, python
from website import code


def trained(folder, program, *launcher):
    folder.mkdir()
    (folder / "train.py").write_text(program)
    python(*launcher, "train.py", cwd=folder)
    return load_file(folder / "bert" / "model.safetensors")


@pytest.mark.slow
def test_two_processes_train_what_one_does(tmp_path):
    page = (ROOT / "docs/guide/works-with.md").read_text(encoding="utf-8")
    (recipe,) = (text for _, text, _ in code.blocks(page) if "import Accelerator" in text)
    recipe = "from sparse_attn import patch_model\n" + recipe
    config = ["--config_file", ROOT / "configs/accelerate/cpu.yaml"]
    launcher = ["-m", "accelerate.commands.launch", *config]
    two = trained(tmp_path / "two", recipe, *launcher)
    one = trained(tmp_path / "one", recipe.replace("batch_size=8", "batch_size=16"))
    assert any("raw_t" in name for name in one)
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-4, atol=1e-6)
