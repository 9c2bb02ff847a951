"""Settings of the Triton kernels: the shipped tables, launches, and results by every tile."""

from dataclasses import fields
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from triton.backends.nvidia.compiler import CUDAOptions

from benchmarks.tune import CANDIDATES, own_tables, use
from sparse_attn import Mapping
from sparse_attn.kernels import attention
from sparse_attn.kernels.inputs import AttentionInputs
from sparse_attn.kernels.triton import launch, plan, settings, tuned
from sparse_attn.kernels.triton.names import Shape
from sparse_attn.kernels.triton.settings import KERNELS, LONG, MEDIUM, Setting
from sparse_attn.mappings import get_spec, mapping_names

from .backends import CUDA, INTERPRETS, TRITON, each
from .problems import Inputs, Problem, assert_within_budget, solve

ROOT = Path(__file__).parents[2]
CALLS = [*CANDIDATES.items()]
TILES = sorted({setting[:2] for _, found in CALLS for setting in found})
ONE_TILE = Setting(16, 16, warps=1)


@pytest.fixture
def tables():
    """Undoes what a test puts in place of the table."""
    with own_tables():
        yield


def kernels():
    found = {get_spec(name).kernel for name in mapping_names()} - {None}
    names = {name for kernel in found for name in (kernel.name, kernel.family)}
    return names | {"entmax-1.5"}


@pytest.mark.parametrize("device", tuned.TABLES)
def test_shipped_tables(device):
    capability, sources = tuned.TABLES[device]
    assert capability >= (8, 0)
    keys = [key for rows in sources.values() for key in rows]
    assert len(set(keys)) == len(keys)
    for source, rows in sources.items():
        assert (ROOT / source).exists()
        assert rows
        for (kernel, name, row_bytes, row), values in rows.items():
            assert kernel in KERNELS
            assert name in kernels()
            assert row in (MEDIUM, LONG)
            assert row_bytes in (32, 64, 128, 256, 512)
            assert Setting(*values) in [*CANDIDATES[kernel], Setting(64, 64)]


def test_a_gpu_takes_its_table_or_that_of_its_capability(monkeypatch):
    key, setting = ("keys", "softmax", 128, MEDIUM), (64, 64, 4, 2, None)
    other = {key: (64, 64, 4, 3, 168)}
    more = {("keys", "relu", 128, MEDIUM): (64, 64, 4, 2, 128)}
    tables = {
        "NVIDIA H200": ((9, 0), {"": {key: setting}}),
        "NVIDIA H100": ((9, 0), {"": other, "more": more}),
    }
    monkeypatch.setattr(settings, "TABLES", tables)
    found = settings.choose("NVIDIA H100", (9, 0))
    assert found == {k: Setting(*row) for k, row in (other | more).items()}
    assert settings.choose("NVIDIA GH200", (9, 0)) == {key: Setting(64, 64)}
    assert settings.choose("NVIDIA A100", (8, 0)) == {}
    assert settings.table_of(torch.device("cpu")) == {}


def test_a_mapping_comes_before_its_family(tables):
    of_family, of_mapping = Setting(64, 64, stages=3), Setting(64, 64, registers=168)
    rows = {
        ("keys", name, 128, MEDIUM): s for name, s in (("free", of_family), ("relu", of_mapping))
    }
    use(rows, {})
    best = settings.best
    device = torch.device("cpu")
    default = settings.DEFAULTS[settings.HOPPER]
    assert best(device, "keys", ("relu", "free"), 128, 1024) == of_mapping
    assert best(device, "keys", ("sigmoid", "free"), 128, 1024) == of_family
    assert best(device, "keys", ("sigmoid", "free"), 128, 1025) == default["keys"]["free"]
    assert best(device, "queries", ("relu", "free"), 128, 1024) == default["queries"]["free"]
    assert best(device, "keys", ("relu", "free"), 256, 1024) is None


def test_every_family_has_a_default_for_every_kernel():
    families = {get_spec(name).kernel.family for name in mapping_names() if get_spec(name).kernel}
    for by_kernel in settings.DEFAULTS.values():
        assert set(by_kernel) == {*KERNELS}
        assert all(families <= {*names} <= kernels() for names in by_kernel.values())


def test_defaults_are_of_narrow_rows_of_a_measured_capability(monkeypatch):
    device = torch.device("cpu")
    names = "softmax", "pointwise"
    assert settings.default(device, "forward", names, 128) == Setting(64, 64, stages=3)
    assert settings.default(device, "forward", names, 256) is None
    monkeypatch.setattr(settings, "capability_of", lambda device: (8, 0))
    assert settings.default(device, "forward", names, 128) is None


def test_launch_options_are_those_of_triton():
    known = {field.name for field in fields(CUDAOptions)}
    assert known >= {*Setting(64, 64, registers=168).options}
    assert "maxnreg" not in Setting(64, 64).options


class Recorded:
    """A kernel that does nothing but note how it is launched."""

    launches: list

    def __init__(self, name):
        self.name = name

    def __getitem__(self, grid):
        def launched(*arguments, **options):
            chosen = {n: options.get(n) for n in ("num_warps", "num_stages", "maxnreg")}
            (shape,) = (a for a in arguments if isinstance(a, Shape))
            self.launches.append((self.name, grid[0], shape[:2], chosen))

        return launched


@pytest.fixture
def launches(monkeypatch):
    """What is launched on tensors without data."""
    Recorded.launches = []
    for name in ("fwd_kernel", "bwd_dq_kernel", "bwd_dkdv_kernel"):
        monkeypatch.setattr(launch, name, Recorded(name))
    return Recorded.launches


def run(mapping, train, keys=512):
    tensors = [torch.empty(1, 2, keys, 64, dtype=torch.float16) for _ in range(3)]
    inputs = [t.requires_grad_(train) for t in tensors]
    out = attention(*inputs, Mapping(mapping), impl="triton")
    if train:
        out.backward(torch.empty_like(out))


def chosen(setting):
    warps, stages, registers = setting[2:]
    return {"num_warps": warps, "num_stages": stages, "maxnreg": registers}


@pytest.mark.skipif(not INTERPRETS, reason="needs the CPU as device of the kernels")
@pytest.mark.parametrize("mapping", ["softmax", "sparsemax"])
def test_settings_reach_the_launch(mapping, launches, tables):
    family = get_spec(mapping).kernel.family
    own = {
        "inference": Setting(64, 32, 4, 3, 168),
        "forward": Setting(64, 64, 8, 3, None),
        "queries": Setting(64, 64, 4, 3, 128),
        "keys": Setting(128, 128, 8, 2, 168),
    }
    use({(kernel, family, 128, MEDIUM): setting for kernel, setting in own.items()}, {})
    run(mapping, train=False)
    run(mapping, train=True)
    if mapping == "sparsemax":  # lists of tiles that the backward pass reads are of square ones
        own["keys"] = Setting(64, 64)
    names = ("fwd_kernel", "fwd_kernel", "bwd_dq_kernel", "bwd_dkdv_kernel")
    expected = []
    for name, (kernel, setting) in zip(names, own.items(), strict=True):
        side = setting.block_n if kernel == "keys" else setting.block_m
        expected.append((name, 2 * 512 // side, setting[:2], chosen(setting)))
    assert launches == expected


@pytest.mark.skipif(not INTERPRETS, reason="needs the CPU as device of the kernels")
def test_rows_of_one_tile_and_other_sizes_keep_the_defaults(launches, tables):
    use({(k, "pointwise", 128, MEDIUM): ONE_TILE for k in KERNELS}, {})
    run("softmax", train=True, keys=128)
    run("softmax", train=True, keys=1088)
    default = {kernel: rows["pointwise"] for kernel, rows in settings.DEFAULTS[(9, 0)].items()}
    expected = [Setting(64, 128), Setting(128, 64, warps=8)]
    expected += [default[kernel] for kernel in ("forward", "queries", "keys")]
    assert [(tile, options) for *_, tile, options in launches] == [
        (setting[:2], chosen(setting)) for setting in expected
    ]


def planned(problem, train=True, dtype=torch.float16):
    """Inputs of the operator, and the plan of the call."""
    data = Inputs(problem, dtype, dtype)
    call = AttentionInputs(data.query, data.key, data.value, data.mapping, **data.arguments)
    inputs = call.for_operator().dense()
    return inputs, plan.plan(inputs, train, False)


@pytest.mark.parametrize(
    ("mapping", "changed", "kept"),
    [
        ("sparsemax", {}, True),
        ("r-softmax", {}, True),
        ("softmax", {}, False),
        ("sparsemax", {"keys": 257}, False),
        ("sparsemax", {"dim": 128}, False),
    ],
)
def test_rows_that_stay_on_chip(mapping, changed, kept):
    shape, _ = planned(Problem(mapping, **{"keys": 256, "dim": 64, **changed}))[1].forward
    assert (shape.kept > 0) == kept


@pytest.mark.skipif(not INTERPRETS, reason="needs the CPU as device of the kernels")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": 70}], ids=str)
def test_kept_rows_list_the_same_tiles(options, monkeypatch):
    """The backward pass reads lists of tiles with support, which it must not get otherwise."""
    lengths = {"queries": 150, "keys": 250, "dim": 16, "batch": 1, "heads": 1, "kv_heads": 1}
    found = []
    for most in (256, 0):
        monkeypatch.setattr(plan, "KEPT", (most, 0))
        monkeypatch.setattr(plan, "_PLANS", {})
        inputs, made = planned(Problem("sparsemax", spread=9.0, options=options, **lengths))
        assert (made.forward[0].kept > 0) == (most > 0)
        with torch.no_grad():
            inputs.key[:, :, 64:128] = 0.0  # a tile without support, for most rows
        found.append(launch.triton_forward(*inputs, True, False))
    kept, again = found
    for got, wanted in zip(kept[:3], again[:3], strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-3, atol=2e-3, equal_nan=True)
    for lists, others in zip(kept[3][0].tolist(), again[3][0].tolist(), strict=True):
        count = lists[0]
        assert lists[: count + 1] == others[: count + 1]
        assert options or 1 not in lists[1 : count + 1]
    assert torch.equal(kept[4], again[4])


@each(TRITON, CUDA)
@pytest.mark.parametrize(
    "mapping", [("softmax", {}), ("r-softmax", {"r": 0.3125}), ("sparsemax", {})]
)
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_results_do_not_depend_on_the_tile(backend, mapping, tile, tables, monkeypatch):
    monkeypatch.setattr(plan, "KEPT", (0, 0))
    monkeypatch.setattr(plan, "KEPT_BY_KERNEL", {})
    name, params = mapping
    kernel = get_spec(name).kernel
    rows = {(k, kernel.name, 128, MEDIUM): Setting(*tile) for k in KERNELS}
    use(rows, {})
    lengths = {"queries": 150, "keys": 170, "dim": 64, "batch": 1, "heads": 1, "kv_heads": 1}
    problem = Problem(name, params, options={"causal": True}, **lengths)
    assert_within_budget(problem, "triton", torch.float16, backend.device)
    with torch.no_grad():
        alone = Inputs(problem, torch.float16, torch.float16, backend.device).attend("triton")
    expected = solve(problem, "triton", torch.float16, torch.float16, backend.device)["output"]
    torch.testing.assert_close(alone, expected, rtol=2e-3, atol=2e-3)
