"""What the mappings, their module and their registry refuse."""

import math
import re
from functools import partial

import torch

from sparse_attn import Mapping, MappingSpec, functional, register_mapping
from sparse_attn.mappings import get_spec, pointwise_spec
from tests.bad_input import Wrong

from .cases import ONE_EACH, PARAMETERS, function_of

SCORES = torch.randn(2, 5)
R = "r-softmax"


def out_of_range(parameter, value, log):
    """The error names the parameter, its value and the range."""
    return Wrong(
        f"{'log ' * log}{parameter} of {value}",
        lambda _: parameter(SCORES, value, log=log),
        ValueError,
        rf"^{parameter.name}={value} is out of range: .*{re.escape(parameter.range)}",
    )


def of_another_type(parameter, value, log):
    """The error names the parameter, its value, and that a tensor would do."""
    return Wrong(
        f"{'log ' * log}{parameter} of {value!r}",
        lambda _: parameter(SCORES, value, log=log),
        TypeError,
        rf"^{parameter.name}={re.escape(repr(value))}: expected a (whole )?number in "
        rf"{re.escape(parameter.range)}, or a tensor$",
    )


def of_another_shape(parameter, shape):
    return Wrong(
        f"{parameter} of shape {shape}",
        lambda _: parameter(torch.randn(2, 3, 9), torch.full(shape, 1.0)),
        ValueError,
        rf"^{parameter.name}: shape .*does not broadcast",
    )


def of_a_mapping(case, log):
    call = function_of(case.name, log)

    def row(what, error, says, scores=SCORES, **options):
        arguments = {**case.arguments(SCORES), **options}
        if case.name == "weighted-softmax":
            arguments["weights"] = 1.0
        name = f"{what} of {'log ' * log}{case.name}"
        return Wrong(name, lambda _: call(scores, **arguments), error, says)

    for dtype in (torch.int64, torch.bool, torch.uint8):
        scores = torch.ones(2, 3, dtype=dtype)
        yield row(f"{dtype} scores", TypeError, f"scores: .*{dtype}", scores=scores)
    for dtype in (torch.float32, torch.int64):
        mask = torch.ones(2, 5, dtype=dtype)
        yield row(f"a {dtype} mask", TypeError, f"mask: .*boolean.*{dtype}", mask=mask)
    for shape in [(2, 4), (3, 5), (3, 2, 5)]:
        mask = torch.ones(shape, dtype=torch.bool)
        yield row(f"a mask {shape}", ValueError, "mask: shape .*does not broadcast", mask=mask)


def of_weights(shape):
    weights = torch.ones(shape)
    call = functional.weighted_softmax
    return Wrong(f"weights {shape}", lambda _: call(SCORES, weights), ValueError, "weights: shape")


def of_gradient(log):
    says = r"gradient.*'exakt'.*exact.*detached"
    name = f"an unknown gradient of {'log ' * log}r_softmax"
    call = partial(functional.r_softmax, SCORES, 0.3, gradient="exakt", log=log)
    return Wrong(name, lambda _: call(), ValueError, says)


def module(name, error, says, **arguments):
    return Wrong(
        f"Mapping {name} of {arguments}", lambda _: Mapping(name, **arguments), error, says
    )


def unknown(wrong, says):
    """By the registry, and by the module."""
    return [
        Wrong(f"get_spec of {wrong!r}", lambda _: get_spec(wrong), ValueError, says),
        Wrong(f"Mapping of {wrong!r}", lambda _: Mapping(wrong), ValueError, says),
    ]


def set_value(parameter, value, error, says, **arguments):
    name = f"set_value {parameter}={value}"
    return Wrong(name, lambda _: Mapping(R, **arguments).set_value(parameter, value), error, says)


def record(name, error, says, **fields):
    spec = {"name": name, "function": functional.softmax, **fields}
    return Wrong(f"record {name}", lambda _: register_mapping(MappingSpec(**spec)), error, says)


def plain(function, error, says, name="own", **fields):
    """A function of rows, whose error names the mapping and the remedy."""
    return Wrong(
        f"function: {says}", lambda _: register_mapping(name, **fields)(function), error, says
    )


def required(scores, t):
    return scores.softmax(-1)


def flag(scores, hard=True):
    return scores.softmax(-1)


def dim(scores, dim=-1):
    return scores.softmax(dim)


def several(scores, *t):
    return scores.softmax(-1)


def largest(scores, k=3):
    return scores.topk(k).values


def rooted(scores, valid):
    weights = (1 + scores.abs().sqrt()) * valid
    return weights / weights.sum(-1, keepdim=True)


def start_on_meta(_):
    with torch.device("meta"):
        Mapping("entmax", alpha=2.0, learn="alpha")


NEAREST = {
    "r-sofmax": "r-softmax",
    "r_softmax": "r-softmax",
    "rSoftmax": "r-softmax",
    "sparse-max": "sparsemax",
    "entmx": "entmax",
    "spherical": "spherical-softmax",
    "Softmax": "softmax",
    "plf": "plif",
    "random-drop": "random-drop-softmax",
    "topk-softmax": "top-k-softmax",
    "mixed-r-sofmax": "mixed-r-softmax",
    "scaled-sofmax": "scaled-softmax",
    "top-p": "top-p-softmax",
    "detached-r-sofmax": "detached-r-softmax",
    "mixed-sparsemix": "mixed-sparsemax",
    "scaled-detached-r-sofmax": "scaled-detached-r-softmax",
    "softmax1": "softmax with sink=0",
    "Off_by one softmax": "softmax with sink=0",
    "SSMax": "scaled-softmax",
    "nucleus": "top-p-softmax",
    "sofmax:sink=0": "softmax",
}

ROWS = [
    *(out_of_range(p, x, log) for p in PARAMETERS for x in p.outside for log in (False, True)),
    out_of_range(PARAMETERS[2], 1.0, log=False),  # the open end
    *(of_another_type(p, x, log) for p in PARAMETERS if p.name not in ("gamma", "bias")
      for x in ("a", None, [0.5]) for log in (False, True)),
    of_another_type(next(p for p in PARAMETERS if p.name == "gamma"), "a", log=False),
    *(Wrong(f"{name} of slopes in a list", lambda _, call=call: call(SCORES),
            TypeError, f"^{name}: expected a floating-point tensor, got list; use torch.as_tensor$")
      for name, call in (("raw_slopes", lambda z: functional.plif(z, [0.5])),
                         ("raw_gain", lambda z: functional.monotone(z, [0.5], [0.5], [0.5])))),
    *(of_another_shape(p, shape) for p in PARAMETERS for shape in [(9,), (3, 1, 1), (2, 3, 1)]),
    *(row for case in ONE_EACH for log in (False, True) for row in of_a_mapping(case, log)),
    *(of_weights(shape) for shape in [(4,), (3, 5), (2, 2, 5)]),
    *(of_gradient(log) for log in (False, True)),
    Wrong("r of rows without positions", lambda _: functional.r_softmax(torch.zeros(2, 0), 2.0),
          ValueError, r"r=2\.0"),
    Wrong("mask of rows without positions",
          lambda _: functional.softmax(torch.zeros(2, 0), mask=torch.ones(9, 9, dtype=torch.bool)),
          ValueError, "mask: shape"),
    Wrong("a parameter that mixed has not",
          lambda _: get_spec("mixed-r-softmax").function(SCORES, t=1.0),
          TypeError, "^t: unknown parameter; expected r, mix"),
    Wrong("a parameter that log g has not",
          lambda _: pointwise_spec("own", torch.abs).function(SCORES, power=2.0),
          TypeError, "^power: unknown parameter; expected no parameters"),

    *(module(p.mapping, ValueError, rf"{p.name}={x}.*{re.escape(p.range)}", **{p.name: x})
      for p in PARAMETERS for x in p.outside),
    module("mixed-r-softmax", ValueError, r"mix=1\.5", mix=1.5),
    module("mixed-r-softmax", ValueError, r"r=-0\.5", r=-0.5),
    module("softmax", TypeError, r"t=1\.0: unknown parameter; softmax takes sink$", t=1.0),
    module("t-softmax", TypeError, r"r=0\.5: unknown parameter; t-softmax takes t, sink$", r=0.5),
    module("sigmoid", TypeError, r"t=0\.5: unknown parameter; sigmoid takes bias$", t=0.5),
    module("t-softmax", TypeError, "learn='alpha'", learn="alpha"),
    module("t-softmax", TypeError, "learn=5: expected the name of a parameter", learn=5),
    module("t-softmax", TypeError, r"learn=\[1\]: expected the name", learn=[1]),
    Wrong(
        "a list of scores",
        lambda _: functional.sparsemax([1.0, 2.0]),
        TypeError,
        "^scores: expected a floating-point tensor, got list; use torch.as_tensor$",
    ),
    Wrong(
        "a mask of NumPy",
        lambda _: functional.sparsemax(SCORES, mask=SCORES.numpy() > 0),
        TypeError,
        "^mask: expected a tensor, got ndarray; use torch.as_tensor$",
    ),
    module("top-k-softmax", TypeError, "learn='k'.*can learn sink$", learn="k"),
    module("random-drop-softmax", TypeError, "learn='r'.*can learn sink$", learn="r"),
    *(module(f"{prefix}detached-r-softmax", TypeError, f"learn='r': no gradient reaches it; {can}$",
             learn="r")
      for prefix, can in (("", "detached-r-softmax can learn sink"),
                          ("mixed-", "mixed-detached-r-softmax can learn mix, sink"))),
    module("relu", TypeError, "learn='r'.*can learn no parameter", learn="r"),
    module("scaled-softmax", ValueError, r"delta=0\.0: .* inside \[0, inf\), such as at 0\.69",
           learn="delta"),
    module(R, ValueError, "r=1.5", learn="r", r=1.5),
    module("t-softmax", ValueError, "t=-1.0", learn="t", t=-1.0),
    module("plif", ValueError, r"\bknots\b.*0", knots=0),
    module("plif", TypeError, r"^knots='a': expected a whole number in \[1, inf\)$", knots="a"),
    module("plif", ValueError, r"\bknots\b.*2\.5", knots=2.5),
    module("plif", ValueError, r"\bbound\b.*0\.0", bound=0.0),
    module("monotone", ValueError, r"\bunits\b.*0", units=0),
    *(set_value("r", x, ValueError, rf"r={x}.*\[0, 1\]") for x in (-0.1, 1.5, math.nan)),
    set_value("t", 1.0, TypeError, r"\bt\b"),
    set_value("r", 0.3, TypeError, r"\br\b", learn="r"),

    *(row for wrong, right in NEAREST.items()
      for row in unknown(wrong, rf"mapping='{wrong}' is unknown; did you mean .*\b{right}\b")),
    *unknown("softmax:sink=0", re.escape('patch_model(model, "softmax", sink=0)')),
    *unknown("scaled-entmax:alpha=1.5,beta=1", r'"scaled-entmax", alpha=1.5,beta=1\)'),
    *(unknown(wrong, "is unknown; there are softmax, ")[0]
      for wrong in ("", "mixed-", "mixed")),
    *(Wrong(f"get_spec of {wrong!r}", lambda _, wrong=wrong: get_spec(wrong), ValueError,
            "expected a name, such as 'sparsemax', with parameters as arguments")
      for wrong in (None, 3, Mapping("softmax"))),
    *(row for name in ("plif", "monotone", "weighted-softmax")
      for row in unknown(f"mixed-{name}", f"mixed-{name}.*tensor arguments.*use it alone")),
    *unknown("mixed-mixed-sparsemax", "mixed-mixed-sparsemax.*parameter mix already"),
    *unknown("scaled-scaled-softmax", "scaled-scaled-softmax.*parameter delta already"),
    *unknown("scaled-clipped-softmax", "clipped-softmax has a parameter gamma already"),
    *(row for name in ("t-softmax", "sparsemax", "random-drop-softmax", "scaled-r-softmax",
                       "mixed-r-softmax", "detached-r-softmax")
      for row in unknown(f"detached-{name}", f"detached-{name}': only r-softmax has .*use {name}")),
    *(row for name in ("mixed-scaled-entmax", "scaled-mixed-entmax")
      for row in unknown(name, "do not combine; use mixed-entmax or scaled-entmax")),
    *unknown("scaled-weighted-softmax", "a value for each score.*use it alone"),

    module("scaled-softmax", ValueError, r"delta=-1\.0 is out of range.*\[0, inf\)", delta=-1.0),
    module("scaled-softmax", ValueError, r"beta=-1\.0 is out of range.*\[0, inf\)", beta=-1.0),
    *(module("softmax", ValueError, rf"sink={x} is out of range.*\(-inf, inf\)", sink=x)
      for x in (math.inf, math.nan)),
    module("softmax", ValueError, 'sink: expected one value, got 2; .*num_heads.*per="head"',
           learn="sink", sink=[0.0, 1.0]),
    module("softmax", ValueError, r'sink: expected one value, got shape \(2,\); .*per="head"',
           sink=[0.0, 1.0]),
    module("softmax", ValueError, r"sink: .*one for each of 3 heads, got shape \(2,\)",
           num_heads=3, sink=[0.0, 1.0]),
    *(module(name, ValueError, "cannot have one, because its weights do not compete", sink=0.0)
      for name in ("sigmoid", "relu", "scaled-sigmoid", "mixed-relu")),
    module("weighted-softmax", ValueError, "a value for each score.*given a sink", sink=0.0),
    Wrong("a start at the end of a range, made on the meta device", start_on_meta, ValueError,
          r"alpha=2\.0: .* inside \[1, 2\], such as at 1\.5"),
    *(module("clipped-softmax", ValueError, "alpha=.*: has no effect beside gamma", **given)
      for given in ({"gamma": -0.1, "alpha": 0.5}, {"gamma": -0.1, "learn": "alpha"},
                    {"gamma": -0.1, "alpha": 0.5, "learn": "gamma"},
                    {"gamma": [-0.1, -0.2], "alpha": [0.5, 0.25], "num_heads": 2})),
    module("sigmoid", ValueError, "give bias a number to start from", learn="bias"),
    module("r-softmax", TypeError, "r=None: expected a number", r=None),
    module("entmax", ValueError, "query_size=3: only .* use scaled-entmax",
           num_heads=2, query_size=3),
    module("mixed-entmax", ValueError, "use scaled-entmax", num_heads=2, query_size=3),
    module("scaled-plif", ValueError, "the learned function of .* is shared",
           query_size=3),
    module("scaled-entmax", ValueError, "query_size=3: needs num_heads", query_size=3),
    *(module("scaled-entmax", ValueError, "expected a whole number of at least 1",
             num_heads=2, query_size=size) for size in (0, -1, 1.5, "32", True)),
    module("scaled-entmax", ValueError, r"beta=0\.0: expected a number in \(0, inf\)",
           num_heads=2, query_size=3, beta=0.0),
    Wrong("beta of queries set to 0",
          lambda _: Mapping("scaled-entmax", num_heads=2, query_size=3).set_value("beta", 0.0),
          ValueError, r"beta=0\.0: expected a number in \(0, inf\)"),
    *(Wrong(f"{name} of a factor for each query",
            lambda _, name=name: getattr(
                Mapping("scaled-entmax", num_heads=2, query_size=3), name)(torch.ones(2, 1, 4)),
            ValueError, "its factor needs the inputs of the queries")
      for name in ("forward", "log")),
    *(module(name, TypeError, f"learn='{p}'.*can learn sink", learn=p)
      for name, p in (("top-p-softmax", "p"), ("threshold-softmax", "lam"), ("max-gap", "a"))),

    record("sparsemax", ValueError, "name='sparsemax' is already registered"),
    record("own", ValueError, "kernel='softmax': expected None for own",
           kernel=get_spec("softmax").kernel),
    record("logless", TypeError, "function: that of logless takes no `log`.*log_function",
           function=lambda scores, *, mask=None, dim=-1: scores),
    record("lossless", TypeError, "losses: expected functions.*'mine': None",
           losses={"mine": None}),
    record("pairless", ValueError, r"multilabel_only=\('pairs',\): .*pairless, which has mine",
           losses={"mine": print}, multilabel_only=("pairs",)),
    record("spelled", ValueError, "multilabel_only='mine': expected a tuple",
           losses={"mine": print}, multilabel_only="mine"),
    record("massive", ValueError, "mass='unknown': expected one of one, at most one, free",
           mass="unknown"),
    record("fixed", ValueError, "predicts='t': expected a parameter of fixed", predicts="t"),
    plain(torch.nn.Softmax(-1), TypeError, "expected a function of scores, got Softmax"),
    plain(required, TypeError, "^t: expected a parameter with a number as its default, or `val"),
    plain(flag, TypeError, "^hard=True: expected a parameter with a number"),
    plain(several, TypeError, r"^\*t: expected a parameter with a number"),
    plain(dim, TypeError, "^dim: handled for every mapping; leave it out of the function"),
    plain(flag, ValueError, "^parameters: own has no argument t", parameters=(PARAMETERS[0],)),
    plain(largest, ValueError, r"^mapping='own': TypeError: topk.*parameters as tensors \(1,\)"),
    plain(lambda z: z.softmax(-1).sum(-1), ValueError,
          r"^mapping='own': ValueError: expected the shape of the scores, got \(4, 8\)"),
    plain(lambda z: torch.from_numpy(z.numpy()), ValueError, "'own': RuntimeError: .*grad"),
    plain(lambda z: z.square() / z.square().sum(-1, keepdim=True), ValueError,
          "is not finite for some rows, such as one score, or zeros"),
    plain(lambda z: z - z.mean(-1, keepdim=True), ValueError, "is negative; return probabilities"),
    plain(lambda z: z.sigmoid(), ValueError, "rows that sum to .* or pass mass='at most one'"),
    plain(lambda z: z.softmax(0), ValueError, "rows that sum to"),
    plain(lambda z: 2 * z.softmax(-1), ValueError, "rows that sum to 2 to 2;", mass="at most one"),
    plain(lambda z: (z / (1 + z.abs().amax())).softmax(-1), ValueError,
          "gives a row another result among other rows; use dim=-1"),
    plain(lambda z: (1 + z.abs()) / (1 + z.abs()).sum(-1, keepdim=True), ValueError,
          "lets masked scores, which are -inf, change the others; add an argument `valid`"),
    plain(rooted, ValueError, "has a gradient that is not finite"),
    plain(lambda z: z.softmax(-1), ValueError, "name='softmax' is already", name="softmax"),
    plain(lambda z: z.softmax(-1), TypeError, "unexpected keyword argument 'zero'", zero=True),
]  # fmt: skip
