"""Engine ``ray``: stations in shards, one actor each, on the machines of a Ray cluster; and sweeps on the same.

An actor reads its rows where it lives: from the recipe of an outline (`outline`), or from shared memory where the
federation was given in memory. Between actors and this process go anchors, models, v_b, sums and gain curves alone.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import ExitStack, chdir, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rhfedmtl.algorithms.method import Method
from rhfedmtl.data.federation import Federation
from rhfedmtl.data.mapped import map_of
from rhfedmtl.data.outline import Outline, Recipe, facts
from rhfedmtl.data.request import Request
from rhfedmtl.engines.cluster.actors import SAME, ActorPlan, RayActors, check_kind, kind, last_line
from rhfedmtl.engines.cluster.session import MIB, ClusterNode, nodes, ray_module, session
from rhfedmtl.engines.cluster.shard import Part, RowSource, Taken
from rhfedmtl.engines.cluster.sharded import Sharded, share_out
from rhfedmtl.engines.network import IntArray
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import ClusterError, ConfigError, RHFedMTLError

__all__ = ["Pool", "network", "outline", "session"]

KEPT = 256 * MIB
"""Data up to this size stays with an actor after it took its rows, for terminals that come from elsewhere."""


class FromRecipe:
    """Rows that are loaded, or made, where they are needed."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._kept: Federation | None = None

    def rows(self, first: int, last: int) -> Taken:
        """Rows first … last − 1; what is mapped from disk is read no further."""
        whole = self._kept or self._recipe.federation()
        if whole.X.nbytes <= KEPT or map_of(whole.X) is not None:
            self._kept = whole
        span, weight = slice(first, last), whole.sample_weight
        terminals = slice(*np.searchsorted(whole.terminal_offsets, (first, last)).tolist())
        return Taken(
            whole.X[span].copy(),
            whole.y[span].copy(),
            None if weight is None else weight[span].copy(),
            whole.sizes[terminals],
        )

    def __reduce__(self) -> Any:
        """Only the recipe travels."""
        return FromRecipe, (self._recipe,)


class FromStore:
    """Rows in the shared memory of the cluster, an object for each part; owned by the process that has them all."""

    def __init__(self, objects: list[tuple[int, int, Any]]) -> None:
        self._objects = objects

    @classmethod
    def put(cls, ray: Any, federation: Federation, parts: list[Part]) -> FromStore:
        """Put the rows of each part into shared memory."""
        whole = Taken(federation.X, federation.y, federation.sample_weight)
        return cls([(*part.rows, ray.put(whole.cut(*part.rows))) for part in parts])

    def rows(self, first: int, last: int) -> Taken:
        """Rows first … last − 1, as they lie in shared memory."""
        start, ref = next((start, ref) for start, stop, ref in self._objects if start <= first and last <= stop)
        taken: Taken = ray_module().get(ref)
        return taken.cut(first - start, last - start)


def network(federation: Federation, method: Method, *, seed: int, present: IntArray, execution: Execution) -> Sharded:
    """Actors on the cluster that is named, or on a local Ray, with the rows of a federation or an outline."""
    made_here = not isinstance(federation, Outline)
    if made_here:
        method.check(federation)
    with ExitStack() as stack:
        ray = stack.enter_context(session(execution.address, store=federation.X.nbytes if made_here else 0))
        places = places_for(nodes(ray), execution.actors, federation.n_tasks)
        weights = [node.cores / places.count(node) for node in places]
        parts = share_out(federation, weights, present)
        source: RowSource = (
            FromRecipe(federation.recipe)
            if isinstance(federation, Outline) and federation.recipe is not None
            else FromStore.put(ray, federation, parts)
        )
        plans = [
            ActorPlan(part, source, method, seed, execution.threads or max(1, int(w)), bytes_of(federation, part))
            for part, w in zip(parts, weights, strict=True)
        ]
        check_room(plans, places)
        actors = stack.enter_context(closing(RayActors(ray, plans, places)))
        return Sharded(federation, method, parts, actors, stack.pop_all().close)  # with the Ray that was brought up


def outline(request: Request, seed: int) -> Outline:
    """The federation that a request asks for, loaded and looked at on the cluster: its training rows stay there."""
    if not ray_module().is_initialized():
        raise ConfigError("an outline is made on a cluster: open a session first")
    path = None if request.path is None else str(Path(request.path).expanduser().absolute())
    recipe = Recipe(replace(request, path=path), seed)

    def fetch() -> IntArray:
        with Pool() as pool:
            sizes: IntArray = pool.submit(_sizes, recipe).result()
        return sizes

    with Pool() as pool:
        return Outline.from_facts(pool.submit(_facts, recipe).result(), recipe, fetch)


class Pool(Executor):
    """Calls of functions, spread over the cluster that this process is connected to.

    Each takes one core, and is repeated elsewhere if it is lost with its machine. An error that is raised on purpose
    comes back as it was raised; a machine with other versions is refused.
    """

    def __init__(self) -> None:
        ray = ray_module()
        self._call = ray.remote(_call).options(num_cpus=1, max_retries=10)
        self._ray_error = ray.exceptions.RayError
        self._known: set[str] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call ``fn`` somewhere."""
        made: Future[Any] = Future()

        def done(answer: Future[Any]) -> None:
            try:
                made.set_result(self._value(answer))
            except Exception as error:
                made.set_exception(error)

        self._call.remote(fn, args, kwargs, str(Path.cwd())).future().add_done_callback(done)
        return made

    def _value(self, answer: Future[Answer]) -> Any:
        try:
            found = answer.result()
        except self._ray_error as error:
            raise ClusterError(f"a call failed on the cluster: {last_line(error)}; {SAME}") from error
        if found.address not in self._known:
            check_kind(found.kind, found.address)
            self._known.add(found.address)
        if found.error is not None:
            raise found.error
        return found.value


class Answer(NamedTuple):
    """What a call gives, or an error raised on purpose; and what machine that was."""

    value: Any
    error: RHFedMTLError | None
    kind: dict[str, str]
    address: str


def _call(fn: Callable[..., Any], args: Any, kwargs: Any, folder: str) -> Answer:
    """Call in the folder of whoever asks, where there is one of that name: paths of data may start from it."""
    value, raised, here = None, None, str(ray_module().util.get_node_ip_address())
    try:
        with chdir(folder) if Path(folder).is_dir() else nullcontext():
            value = fn(*args, **kwargs)
    except RHFedMTLError as error:
        raised = error
    return Answer(value, raised, kind(), here)


def _facts(recipe: Recipe) -> dict[str, Any]:
    return facts(recipe.federation())


def _sizes(recipe: Recipe) -> IntArray:
    return recipe.federation().sizes


def places_for(machines: list[ClusterNode], actors: int | None, n_tasks: int) -> list[ClusterNode]:
    """A machine for each actor: one actor on each, unless another number is wanted; never more than stations."""
    n = min(len(machines) if actors is None else actors, n_tasks)
    largest_first = sorted(machines, key=lambda node: -node.cores)
    return sorted(largest_first[i % len(machines)] for i in range(n))


def bytes_of(federation: Federation, part: Part) -> int:
    """Memory that a part takes: its rows and what is kept for each row and model, and all rows where all are read."""
    first, last = part.rows
    columns = max(1, len(federation.class_names))
    each = federation.n_features * federation.X.dtype.itemsize + 8 * (4 * columns + 6)
    reading = federation.X.nbytes if isinstance(federation, Outline) and not federation.mapped else 0
    return reading + (last - first) * each + 8 * 4 * len(part.task_names) * columns * federation.n_features


def check_room(plans: list[ActorPlan], places: list[ClusterNode]) -> None:
    """Refuse actors that need more memory than their machines have."""
    needed: dict[ClusterNode, int] = {}
    for plan, node in zip(plans, places, strict=True):
        needed[node] = needed.get(node, 0) + plan.bytes
    for node, size in needed.items():
        if size > node.memory:
            raise ClusterError(
                f"the stations meant for node {node.address} take about {size / MIB:,.0f} MiB, and it has "
                f"{node.memory / MIB:,.0f} MiB for processes: add machines, take fewer rows, or have actors read no "
                "more than their own (`rhfedmtl data split … --out FOLDER`, then --data saved --path FOLDER)"
            )
