"""Algorithms, merges and channels, by name. To add an entry, write its file and add its line to this module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from rhfedmtl.registry import Entry, Option, Registry

if TYPE_CHECKING:
    from rhfedmtl.algorithms.merges import Merge
    from rhfedmtl.algorithms.method import Channel, Method
    from rhfedmtl.data.federation import Federation
    from rhfedmtl.policies.base import Policy

Grid = Mapping[str, Sequence[Any]]


def unchanged(federation: Federation) -> Federation:
    """Return the federation unchanged."""
    return federation


class Algorithm(NamedTuple):
    """A method, a policy for its work, and a regrouping of tasks and terminals that comes first."""

    method: Method
    policy: Policy
    regroup: Callable[[Federation], Federation] = unchanged


@dataclass(frozen=True)
class AlgorithmEntry(Entry[Algorithm]):
    """An algorithm: called with `Options` and the kind of labels, it makes an `Algorithm`.

    Tuning tries the candidates of ``grid``, as many as for every other algorithm, with step sizes for rows of norm 1.
    If the user sets H, ``grid_for_given_steps`` replaces it to spend the trials elsewhere. A comparison passes no H and
    K to an algorithm that ``decides_steps``. A ``yardstick`` pays nothing, has no budget, and runs until it is solved.
    An algorithm that ``moves_data`` puts rows of several terminals on one machine, which no other algorithm does. Rows
    are scaled by ``scale`` unless the user says otherwise (None: by the kind of labels). An algorithm that
    ``keeps_weights`` never chooses λ1 or λ2 on training rows.
    """

    grid: Grid = field(default_factory=dict, kw_only=True)
    grid_for_given_steps: Grid | None = field(default=None, kw_only=True)
    decides_steps: bool = field(default=False, kw_only=True)
    yardstick: bool = field(default=False, kw_only=True)
    moves_data: bool = field(default=False, kw_only=True)
    scale: str | None = field(default=None, kw_only=True)
    keeps_weights: bool = field(default=False, kw_only=True)


def powers(low: float, high: float, count: int) -> tuple[float, ...]:
    """Return ``count`` numbers from low to high in equal ratios, rounded to two digits."""
    return tuple(float(f"{low * (high / low) ** (i / (count - 1)):.1e}") for i in range(count))


TUNED_STEPS = (0.1, 0.3, 1.0, 3.0)
TUNED_VISITS = (2, 10, 40)
WEIGHTS: Grid = {"lambda1": (1e-4, 1e-3, 1e-2), "lambda2": powers(1e-4, 10.0, 8)}
FIXED_STEPS: Grid = {"local_steps": TUNED_VISITS, "lambda1": (1e-4, 1e-3), "lambda2": powers(1e-3, 1.0, 4)}
ONE_TASK: Grid = {"local_steps": TUNED_VISITS, "lambda1": powers(1e-5, 1e-1, 8)}

STEP = Option("step", float, 0.5, "Step size")
DECAY = Option("decay", float, 0.0, "The step size falls by 1/(1 + decay · rounds)")
MU = Option("mu", float, None, "Weight of the distance to the common model", "0.1")
COMPONENTS = Option("components", int, None, "Number of models that the tasks mix", "3")
PHI = Option("phi", float, None, "Control parameter φ of the paper", "0.025")
SERVER_STEP = Option("server_step", float, 0.1, "Step size of the server")
INNER_STEPS = Option("inner_steps", int, 5, "Steps of a task's model before each step of the common model")
FOLLOW = Option("follow", float, 0.5, "Share of the way that the common model moves to a task's model")
TEAM_PULL = Option("team_pull", float, 0.1, "Weight of the distance between a station's model and the cloud's")
TEAM_STEP = Option("team_step", float, 1.0, "Share of the way that a station moves to its optimum in a round")
CLOUD_STEP = Option("cloud_step", float, 1.0, "Share of the way that the cloud moves to the mean of the stations")
NEWTON_STEPS = Option("newton_steps", int, 2, "Conjugate-gradient steps in a round")
SGD = (STEP, DECAY)

ALGORITHMS: Registry[AlgorithmEntry] = Registry(
    "algorithm",
    "algorithms",
    AlgorithmEntry,
    {
        "rhfedmtl": AlgorithmEntry(
            "multi-task learning that adapts its work to the budget and to measurements",
            "rhfedmtl.algorithms.rhfedmtl:rhfedmtl",
            grid=WEIGHTS,
            decides_steps=True,
        ),
        "hfedmtl": AlgorithmEntry(
            "the same with fixed H, K and M",
            "rhfedmtl.algorithms.hfedmtl:hfedmtl",
            grid=FIXED_STEPS,
            grid_for_given_steps=WEIGHTS,
        ),
        "rhfedmtl-paper": AlgorithmEntry(
            "Algorithm 1 of the paper, with H and K by its Procedure 1",
            "rhfedmtl.algorithms.paper:rhfedmtl_paper",
            grid=WEIGHTS,
            decides_steps=True,
            scale="standard-unit",
            keeps_weights=True,
        ),
        "hfedmtl-paper": AlgorithmEntry(
            "Algorithm 1 of the paper, with fixed H and K",
            "rhfedmtl.algorithms.paper:hfedmtl_paper",
            grid=FIXED_STEPS,
            grid_for_given_steps=WEIGHTS,
            scale="standard-unit",
            keeps_weights=True,
        ),
        "local": AlgorithmEntry(
            "a separate model for every task",
            "rhfedmtl.algorithms.baselines.local:local",
            grid={"lambda1": powers(1e-5, 1.0, 24)},
            decides_steps=True,
        ),
        "cocoa": AlgorithmEntry(
            "a single task over all terminals, updates averaged",
            "rhfedmtl.algorithms.baselines.cocoa:cocoa",
            grid=ONE_TASK,
        ),
        "cocoa+": AlgorithmEntry(
            "a single task over all terminals, updates added",
            "rhfedmtl.algorithms.baselines.cocoa:cocoa_plus",
            grid=ONE_TASK,
        ),
        "mocha": AlgorithmEntry(
            "one terminal per task, a learned relationship",
            "rhfedmtl.algorithms.baselines.mocha:mocha",
            grid={"lambda1": (1e-4, 1e-3, 1e-2), "lambda2": powers(3e-5, 3.0, 8)},
            decides_steps=True,
            moves_data=True,
        ),
        "fedavg": AlgorithmEntry(
            "a single model for all tasks, by averaged gradient steps",
            "rhfedmtl.algorithms.baselines.fedavg:fedavg",
            options=SGD,
            grid={"step": (0.03, *TUNED_STEPS, 10.0), "local_steps": (2, 5, 15, 40)},
        ),
        "fedprox": AlgorithmEntry(
            "FedAvg whose terminals stay near the model they were sent",
            "rhfedmtl.algorithms.baselines.fedprox:fedprox",
            options=(*SGD, MU),
            grid={"step": TUNED_STEPS, "local_steps": TUNED_VISITS, "mu": (0.01, 0.1)},
        ),
        "hierfavg": AlgorithmEntry(
            "FedAvg whose stations average several times before the cloud does",
            "rhfedmtl.algorithms.baselines.fedavg:hierfavg",
            options=SGD,
            grid={"step": TUNED_STEPS, "local_steps": TUNED_VISITS, "station_rounds": (2, 4)},
        ),
        "ditto": AlgorithmEntry(
            "a model for each task, held near the common model",
            "rhfedmtl.algorithms.baselines.ditto:ditto",
            options=(*SGD, MU),
            grid={"step": TUNED_STEPS, "local_steps": TUNED_VISITS, "mu": (0.01, 0.3)},
        ),
        "fedem": AlgorithmEntry(
            "tasks mix a few common models, each with its own shares",
            "rhfedmtl.algorithms.baselines.fedem:fedem",
            options=(*SGD, COMPONENTS),
            grid={"step": (0.3, 1.0, 3.0, 10.0), "local_steps": TUNED_VISITS, "components": (2, 3)},
        ),
        "adaptive-fl": AlgorithmEntry(
            "FedAvg that controls its number of steps under a budget",
            "rhfedmtl.algorithms.baselines.adaptive_fl:adaptive_fl",
            options=(*SGD, PHI),
            grid={"step": (0.03, *TUNED_STEPS, 10.0), "phi": (2.5e-5, 2.5e-4, 2.5e-3, 2.5e-2)},
            decides_steps=True,
        ),
        "lbfgs": AlgorithmEntry(
            "quasi-Newton steps on the joint problem of all tasks, a gradient in every round",
            "rhfedmtl.algorithms.baselines.lbfgs:lbfgs",
            grid=WEIGHTS,
            decides_steps=True,
        ),
        "giant": AlgorithmEntry(
            "means of the terminals' Newton directions on the joint problem of all tasks",
            "rhfedmtl.algorithms.baselines.giant:giant",
            options=(NEWTON_STEPS,),
            grid={"newton_steps": (2, 5, 10), "lambda1": (1e-4, 1e-3), "lambda2": powers(1e-3, 1.0, 4)},
            decides_steps=True,
        ),
        "scaffold": AlgorithmEntry(
            "FedAvg with steps corrected for the drift of each terminal",
            "rhfedmtl.algorithms.baselines.scaffold:scaffold",
            options=SGD,
            grid={"step": (0.03, *TUNED_STEPS, 10.0), "local_steps": (2, 5, 15, 40)},
        ),
        "scaffnew": AlgorithmEntry(
            "SCAFFOLD with rounds of random length (ProxSkip)",
            "rhfedmtl.algorithms.baselines.scaffnew:scaffnew",
            options=SGD,
            grid={"step": (0.03, *TUNED_STEPS, 10.0), "local_steps": (2, 5, 15, 40)},
        ),
        "fedadam": AlgorithmEntry(
            "FedAvg whose server takes steps of Adam",
            "rhfedmtl.algorithms.baselines.fedadam:fedadam",
            options=(*SGD, SERVER_STEP),
            grid={"step": (0.3, 3.0), "local_steps": TUNED_VISITS, "server_step": (0.01, 0.03, 0.1, 0.3)},
        ),
        "fedyogi": AlgorithmEntry(
            "FedAvg whose server takes steps of Yogi",
            "rhfedmtl.algorithms.baselines.fedadam:fedyogi",
            options=(*SGD, SERVER_STEP),
            grid={"step": (0.3, 3.0), "local_steps": TUNED_VISITS, "server_step": (0.01, 0.03, 0.1, 0.3)},
        ),
        "pfedme": AlgorithmEntry(
            "a model for each task, near a common model that follows them",
            "rhfedmtl.algorithms.baselines.pfedme:pfedme",
            options=(*SGD, MU, INNER_STEPS, FOLLOW),
            grid={"step": TUNED_STEPS, "local_steps": TUNED_VISITS, "mu": (0.01, 0.3)},
        ),
        "permfl": AlgorithmEntry(
            "terminal models near their station's model, station models near the cloud's",
            "rhfedmtl.algorithms.baselines.permfl:permfl",
            options=(*SGD, MU, TEAM_PULL, TEAM_STEP, CLOUD_STEP),
            grid={"step": TUNED_STEPS, "local_steps": TUNED_VISITS, "mu": (0.1, 1.0)},
        ),
        "fedu": AlgorithmEntry(
            "the joint problem of all tasks by gradient steps; the cloud takes the step of the coupling",
            "rhfedmtl.algorithms.baselines.fedu:fedu",
            options=(STEP,),
            grid={"step": (0.3, 1.0), "local_steps": TUNED_VISITS, "lambda2": (1e-3, 3e-3, 1e-2, 3e-2)},
        ),
        "pooled": AlgorithmEntry(
            "a single model from all rows in a single place, solved",
            "rhfedmtl.algorithms.baselines.pooled:pooled",
            grid={"lambda1": powers(1e-5, 1.0, 24)},
            decides_steps=True,
            yardstick=True,
            moves_data=True,
        ),
        "constant": AlgorithmEntry(
            "the most frequent class, or the mean",
            "rhfedmtl.algorithms.baselines.pooled:constant",
            decides_steps=True,
            yardstick=True,
            moves_data=True,
        ),
    },
)

MERGES: Registry[Entry[Merge]] = Registry(
    "merge",
    "merges",
    Entry,
    {
        "auto": Entry(
            "cautious sums, or quasi-Newton if it gains more",
            "rhfedmtl.algorithms.merges:Auto",
            options=(Option("solver", str, "auto", "Solver of a round: auto, dual-ascent or quasi-newton"),),
        ),
        "average": Entry("mean of the updates", "rhfedmtl.algorithms.merges:Average"),
        "add": Entry("sum of cautious updates", "rhfedmtl.algorithms.merges:Add"),
        "line-search": Entry("best factor along the sum", "rhfedmtl.algorithms.merges:LineSearch"),
    },
)
"""Called with its options, an entry makes a `Merge`."""

_GRID_STEP = Option("grid_step", float, 2.0**-20, "Step of the grid")
CHANNELS: Registry[Entry[Channel]] = Registry(
    "channel",
    "channels",
    Entry,
    {
        "identity": Entry("unchanged, eight bytes a number", "rhfedmtl.algorithms.method:Channel"),
        "clip": Entry(
            "scaled down to a largest norm",
            "rhfedmtl.roles.channel:Clip",
            options=(Option("clip_norm", float, 1.0, "Largest norm of an update"),),
        ),
        "float32": Entry("four bytes a number, the rest with the next update", "rhfedmtl.roles.channel:Float32"),
        "int16": Entry("two bytes a number, the rest with the next update", "rhfedmtl.roles.channel:Int16"),
        "int8": Entry("one byte a number, the rest with the next update", "rhfedmtl.roles.channel:Int8"),
        "fixed-point": Entry(
            "rounded to multiples of a public step, the rest with the next update",
            "rhfedmtl.roles.channel:FixedPoint",
            options=(_GRID_STEP,),
        ),
        "masked": Entry(
            "secure aggregation: the same, and a station sees only sums over terminals",
            "rhfedmtl.roles.channel:MaskedSums",
            options=(_GRID_STEP, Option("least_summed", int, 3, "Fewest terminals in a sum")),
        ),
    },
)
"""Called with its options, an entry makes a `Channel`: the transformation of an update on its way to the station."""


def moves_data(name: str) -> bool:
    """Return True if the algorithm is installed and puts rows of several terminals on one machine."""
    return name in ALGORITHMS and ALGORITHMS[name].moves_data


def is_yardstick(name: str) -> bool:
    """Return True if the algorithm is an installed yardstick."""
    return name in ALGORITHMS and ALGORITHMS[name].yardstick
