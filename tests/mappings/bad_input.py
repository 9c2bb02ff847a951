"""What the mappings, their module and their registry refuse: a row for each public argument."""

import math
import re

import torch

from sparse_attn import Mapping, MappingSpec, functional, register_mapping
from sparse_attn.kernels import attention
from sparse_attn.mappings import ParameterSpec, get_spec, pointwise_spec
from tests.bad_input import Wrong

from .cases import ONE_EACH, PARAMETERS, function_of

SCORES = torch.randn(2, 5)
QUERY = torch.zeros(1, 2, 3, 4)


def wrong(name, call, says, error=ValueError):
    return Wrong(f"mappings: {name}", lambda _: call(), error, says)


# The functions


def of_a_parameter(parameter):
    """Out of its range, of another type, and of a shape that is not that of the rows."""
    low = rf"^{parameter.name}={parameter.outside[0]} is out of range: .*"
    yield wrong(
        f"{parameter} out of range",
        lambda: parameter(SCORES, parameter.outside[0]),
        low + re.escape(parameter.range),
    )
    yield wrong(
        f"{parameter} as a word",
        lambda: parameter(SCORES, "a"),
        rf"^{parameter.name}='a': expected a (whole )?number in .*, or a tensor$",
        TypeError,
    )
    yield wrong(
        f"{parameter} of another shape",
        lambda: parameter(torch.randn(2, 3, 9), torch.ones(9)),
        rf"^{parameter.name}: shape .*does not broadcast",
    )


def of_a_mapping(case):
    """Scores and a mask of another type, and a mask of another shape."""
    call = function_of(case.name)

    def row(what, says, error=TypeError, scores=SCORES, **options):
        arguments = {**case.arguments(SCORES), **options}
        if case.name == "weighted-softmax":
            arguments["weights"] = 1.0
        return wrong(f"{what} of {case.name}", lambda: call(scores, **arguments), says, error)

    yield row("whole scores", "scores: .*torch.int64", scores=torch.ones(2, 3, dtype=torch.int64))
    yield row("a mask of numbers", "mask: .*boolean.*torch.float32", mask=torch.ones(2, 5))
    other = torch.ones(3, 5, dtype=torch.bool)
    yield row("a mask of another shape", "mask: shape .*does not broadcast", ValueError, mask=other)


FUNCTIONS = [
    *(row for parameter in PARAMETERS for row in of_a_parameter(parameter)),
    *(row for case in ONE_EACH for row in of_a_mapping(case)),
    wrong("t=nan", lambda: functional.t_softmax(SCORES, math.nan), "t=nan"),
    wrong("the open end", lambda: functional.sparsegen(SCORES, 1.0), r"lam=1\.0.*\(-inf, 1\)"),
    wrong("r of no positions", lambda: functional.r_softmax(SCORES[:, :0], 2.0), r"r=2\.0"),
    wrong("a list of scores", lambda: functional.sparsemax([1.0]),
          "^scores: expected a floating-point tensor, got list; use torch.as_tensor$", TypeError),
    wrong("a mask of NumPy", lambda: functional.sparsemax(SCORES, mask=SCORES.numpy() > 0),
          "^mask: expected a tensor, got ndarray; use torch.as_tensor$", TypeError),
    wrong("slopes in a list", lambda: functional.plif(SCORES, [0.5]), "^raw_slopes:", TypeError),
    wrong("weights of another shape",
          lambda: functional.weighted_softmax(SCORES, torch.ones(2, 2, 5)), "weights: shape"),
    wrong("another gradient", lambda: functional.r_softmax(SCORES, 0.3, gradient="exakt"),
          "gradient.*'exakt'.*exact.*detached"),
    wrong("a parameter that mixed has not",
          lambda: get_spec("mixed-r-softmax").function(SCORES, t=1.0),
          "^t: unknown parameter; expected r, mix", TypeError),
    wrong("a parameter that log g has not",
          lambda: pointwise_spec("own", torch.abs).function(SCORES, power=2.0),
          "^power: unknown parameter; expected no parameters", TypeError),
]  # fmt: skip


# The module


def module(name, says, error=ValueError, **arguments):
    return wrong(f"Mapping {name} of {arguments}", lambda: Mapping(name, **arguments), says, error)


def start_on_meta():
    with torch.device("meta"):
        Mapping("entmax", alpha=2.0, learn="alpha")


def by_query(**options):
    return Mapping("scaled-entmax", num_heads=2, query_size=3, **options)


MODULES = [
    *(module(p.mapping, rf"{p.name}={p.outside[0]}.*{re.escape(p.range)}",
             **{p.name: p.outside[0]}) for p in PARAMETERS),
    module("mixed-r-softmax", r"mix=1\.5", mix=1.5),
    module("softmax", "sink=inf is out of range", sink=math.inf),
    module("plif", r"\bknots\b.*2\.5", knots=2.5),
    module("plif", r"\bbound\b.*0\.0", bound=0.0),
    module("monotone", r"\bunits\b.*0", units=0),
    module("r-softmax", "r=None: expected a number", TypeError, r=None),
    module("t-softmax", r"r=0\.5: unknown parameter; t-softmax takes t, sink$", TypeError, r=0.5),
    module("t-softmax", "learn='alpha'", TypeError, learn="alpha"),
    module("t-softmax", r"learn=\[1\]: expected the name", TypeError, learn=[1]),
    *(module(name, f"learn='{p}'.*can learn {others}$", TypeError, learn=p)
      for name, p, others in (
          ("top-k-softmax", "k", "sink"), ("relu", "r", "no parameter"),
          ("mixed-detached-r-softmax", "r", "mix, sink"))),
    module("scaled-softmax", r"delta=0\.0: .* inside \[0, inf\), such as at 0\.69", learn="delta"),
    wrong("a start at the end of a range, made on the meta device", start_on_meta,
          r"alpha=2\.0: .* inside \[1, 2\], such as at 1\.5"),
    module("sigmoid", "give bias a number to start from", learn="bias"),
    module("softmax", r'sink: expected one value, got shape \(2,\); .*per="head"', sink=[0.0, 1.0]),
    module("softmax", r"sink: .*one for each of 3 heads", num_heads=3, sink=[0.0, 1.0]),
    module("scaled-sigmoid", "cannot have one, because its weights do not compete", sink=0.0),
    module("weighted-softmax", "a value for each score.*given a sink", sink=0.0),
    module("scaled-plif", "sink: scaled-plif cannot have one, because", sink=0.0),
    wrong("a second sink", lambda: Mapping("softmax", sink=1.0)(SCORES, sink=torch.zeros(2)),
          "sink: softmax has one of its own"),
    wrong("a second sink in attention",
          lambda: attention(QUERY, QUERY, QUERY, Mapping("softmax", sink=1.0), sink=torch.zeros(2)),
          "sink: softmax has one of its own"),
    module("clipped-softmax", "alpha=.*: has no effect beside gamma", gamma=-0.1, alpha=0.5),
    module("mixed-entmax", "query_size=3: only .* use scaled-entmax", num_heads=2, query_size=3),
    module("scaled-plif", "the learned function of .* is shared", query_size=3),
    module("scaled-entmax", "query_size=3: needs num_heads", query_size=3),
    module("scaled-entmax", "a whole number of at least 1", num_heads=2, query_size=True),
    wrong("beta of queries", lambda: by_query(beta=0.0), r"beta=0\.0: expected a number in \(0"),
    wrong("a factor without queries", lambda: by_query()(SCORES[:, None]),
          "its factor needs the inputs of the queries"),
    wrong("set_value out of range", lambda: Mapping("r-softmax").set_value("r", 1.5), r"r=1\.5"),
    wrong("set_value of another", lambda: Mapping("r-softmax").set_value("t", 1.0), r"\bt\b",
          TypeError),
    wrong("set_value of what learns",
          lambda: Mapping("r-softmax", learn="r").set_value("r", 0.3), r"\br\b", TypeError),
]  # fmt: skip


# Names

NEAREST = {
    "r-sofmax": "r-softmax",
    "spherical": "spherical-softmax",
    "scaled-detached-r-sofmax": "scaled-detached-r-softmax",
    "mixed-asentmax": r"scaled-entmax\?",
    "Off_by one softmax": "softmax with sink=0",
}
NOT_MADE = {
    "softmax:sink=0": re.escape('patch_model(model, "softmax", sink=0)'),
    "mixed-plif": "mixed-plif.*tensor arguments.*use it alone",
    "scaled-weighted-softmax": "a value for each score.*use it alone",
    "mixed-mixed-sparsemax": "mixed-mixed-sparsemax.*parameter mix already",
    "scaled-clipped-softmax": "clipped-softmax has a parameter gamma already",
    "detached-t-softmax": "detached-t-softmax': only r-softmax has .*use t-softmax",
    "mixed-scaled-entmax": "do not combine; use mixed-entmax or scaled-entmax",
    "mixed-": "is unknown; there are softmax, ",
}
NAMES = [
    *(wrong(f"the name {name!r}", lambda name=name: get_spec(name), says)
      for name, says in NOT_MADE.items()),
    *(wrong(f"the name {name!r}", lambda name=name: get_spec(name),
            rf"mapping='{name}' is unknown; did you mean .*\b{right}")
      for name, right in NEAREST.items()),
    wrong("Mapping of a name", lambda: Mapping("r-sofmax"), "did you mean r-softmax"),
    *(wrong(f"the name {name!r}", lambda name=name: get_spec(name),
            "expected a name, such as 'sparsemax', with parameters as arguments")
      for name in (None, 3)),
]  # fmt: skip


# Records and functions of a user


def record(name, says, error=ValueError, **fields):
    spec = {"name": name, "function": functional.softmax, **fields}
    return wrong(f"record {name}", lambda: register_mapping(MappingSpec(**spec)), says, error)


def plain(function, says, error=ValueError, name="own", **fields):
    """A function of rows, whose error names the mapping and the remedy."""
    call = lambda: register_mapping(name, **fields)(function)  # noqa: E731
    return wrong(f"function: {says}", call, says, error)


def flag(scores, hard=True):
    return scores.softmax(-1)


def rooted(scores, valid):
    weights = (1 + scores.abs().sqrt()) * valid
    return weights / weights.sum(-1, keepdim=True)


SHARE = ParameterSpec("share", 0.1, low=0.0, high=1.0)
RECORDS = [
    record("sparsemax", "name='sparsemax' is already registered"),
    record("own", "kernel='softmax': expected None for own", kernel=get_spec("softmax").kernel),
    record("logless", "function: that of logless takes no `log`.*log_function", TypeError,
           function=lambda scores, *, mask=None, dim=-1: scores),
    record("lossless", "losses: expected functions.*'mine': None", TypeError,
           losses={"mine": None}),
    record("pairless", r"multilabel_only=\('pairs',\): .*pairless, which has mine",
           losses={"mine": print}, multilabel_only=("pairs",)),
    record("spelled", "multilabel_only='mine': expected a tuple", losses={"mine": print},
           multilabel_only="mine"),
    record("massive", "mass='unknown': expected one of one, at most one, free", mass="unknown"),
    record("fixed", "predicts='t': expected a parameter of fixed", predicts="t"),
    plain(torch.nn.Softmax(-1), "expected a function of scores, got Softmax", TypeError),
    plain(lambda z, t: z, "^t: expected a parameter with a number as its default", TypeError),
    plain(lambda z, *t: z, r"^\*t: expected a parameter with a number", TypeError),
    plain(flag, "^hard=True: expected a parameter with a number", TypeError),
    plain(lambda z, dim=-1: z, "^dim: handled for every mapping; leave it out", TypeError),
    plain(flag, "^parameters: own has no argument share", parameters=(SHARE,)),
    plain(lambda z, share=0.2: z.softmax(-1), r"share: default 0\.2 in the function and 0\.1",
          parameters=(SHARE,)),
    plain(lambda z, k=3: z.topk(k).values, r"^mapping='own': TypeError: topk.*as tensors \(1,\)"),
    plain(lambda z: z.softmax(-1).sum(-1), r"expected the shape of the scores, got \(4, 8\)"),
    plain(lambda z: torch.from_numpy(z.numpy()), "'own': RuntimeError: .*grad"),
    plain(lambda z: z.detach().numpy(), "expected a function of rows"),
    plain(lambda z: z.square() / z.square().sum(-1, keepdim=True), "is not finite for some rows"),
    plain(lambda z: z - z.mean(-1, keepdim=True), "is negative; return probabilities"),
    plain(lambda z: z.sigmoid(), "rows that sum to .* or pass mass='at most one'"),
    plain(lambda z: 2 * z.softmax(-1), "rows that sum to 2 to 2;", mass="at most one"),
    plain(lambda z: (z / (1 + z.abs().amax())).softmax(-1), "another result among other rows"),
    plain(lambda z: (1 + z.abs()) / (1 + z.abs()).sum(-1, keepdim=True),
          "lets masked scores, which are -inf, change the others; add an argument `valid`"),
    plain(rooted, "has a gradient that is not finite"),
    plain(lambda z: z.detach().softmax(-1), "has no gradient; use PyTorch operations"),
    plain(lambda z: z.softmax(-1), "name='a b:1': expected letters", name="a b:1"),
    plain(lambda z: functional.sparsemax(z), "zeros=False: own gives", zeros=False),
    plain(lambda z: z.softmax(-1), "argument 'zero'", TypeError, zero=True),
    wrong("a decorator without a name", lambda: register_mapping(flag),
          "expected a name, as in @register", TypeError),
]  # fmt: skip

ROWS = [*FUNCTIONS, *MODULES, *NAMES, *RECORDS]
