"""Engine ``ray``: stations in shards, each in an actor on a Ray cluster; and a pool for sweeps on the same cluster.

An actor reads its rows on its machine: from the recipe of an outline (`outline`), or from shared memory if the
federation is in memory. Only anchors, models, v_b, sums and gain curves travel between the actors and this process.
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
from rhfedmtl.engines.cluster.shard import Part, RowBatch, RowSource
from rhfedmtl.engines.cluster.sharded import Sharded, share_out
from rhfedmtl.engines.network import IntArray
from rhfedmtl.engines.registry import Execution
from rhfedmtl.errors import ClusterError, ConfigError, RHFedMTLError
from rhfedmtl.features.maps import Features

__all__ = ["Pool", "network", "outline", "session"]

KEEP_BYTES = 256 * MIB
"""An actor keeps data up to this size after it has read its rows, for terminals from other shards."""


class FromRecipe:
    """Rows that each machine loads or generates from a recipe."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._federation: Federation | None = None

    def rows(self, first: int, last: int) -> RowBatch:
        """Return rows first … last − 1; a file that is mapped from disk is read only there."""
        federation = self._federation or self._recipe.federation()
        if federation.X.nbytes <= KEEP_BYTES or map_of(federation.X) is not None:
            self._federation = federation
        span, weight = slice(first, last), federation.sample_weight
        terminals = slice(*np.searchsorted(federation.terminal_offsets, (first, last)).tolist())
        return RowBatch(
            federation.X[span].copy(),
            federation.y[span].copy(),
            None if weight is None else weight[span].copy(),
            federation.sizes[terminals],
        )

    def __reduce__(self) -> Any:
        """Pickle only the recipe."""
        return FromRecipe, (self._recipe,)


class FromStore:
    """Rows in the shared memory of the cluster, an object for each part; the driver process owns them."""

    def __init__(self, objects: list[tuple[int, int, Any]]) -> None:
        self._objects = objects

    @classmethod
    def put(cls, ray: Any, federation: Federation, parts: list[Part]) -> FromStore:
        """Copy the rows of each part into shared memory."""
        rows = RowBatch(federation.X, federation.y, federation.sample_weight)
        return cls([(*part.rows, ray.put(rows.cut(*part.rows))) for part in parts])

    def rows(self, first: int, last: int) -> RowBatch:
        """Return rows first … last − 1 in shared memory."""
        start, ref = next((start, ref) for start, stop, ref in self._objects if start <= first and last <= stop)
        batch: RowBatch = ray_module().get(ref)
        return batch.cut(first - start, last - start)


def network(federation: Federation, method: Method, *, seed: int, present: IntArray, execution: Execution) -> Sharded:
    """Return a network with actors on a cluster or a local Ray, for the rows of a federation or an outline."""
    in_memory = not isinstance(federation, Outline)
    if in_memory:
        method.check(federation)
    with ExitStack() as stack:
        ray = stack.enter_context(session(execution.address, store=federation.X.nbytes if in_memory else 0))
        places = places_for(nodes(ray), execution.actors, federation.n_tasks)
        weights = [node.cores / places.count(node) for node in places]
        parts = share_out(federation, weights, present)
        source: RowSource = (
            FromRecipe(federation.recipe)
            if isinstance(federation, Outline) and federation.recipe is not None
            else FromStore.put(ray, federation, parts)
        )
        plans = [
            ActorPlan(
                part,
                source,
                method,
                seed,
                execution.threads or max(1, int(w)),
                bytes_of(federation, part, method.features),
            )
            for part, w in zip(parts, weights, strict=True)
        ]
        check_room(plans, places)
        actors = stack.enter_context(closing(RayActors(ray, plans, places)))
        return Sharded(federation, method, parts, actors, stack.pop_all().close)  # closes a local Ray too


def outline(request: Request, seed: int) -> Outline:
    """Return the outline of the federation of a request; the cluster loads the federation and keeps its rows."""
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
    """Executor that spreads calls of functions over the connected cluster.

    Each call takes a core, and is repeated on another machine if its machine is lost. An error of this package is
    raised unchanged. A machine with other versions is refused.
    """

    def __init__(self) -> None:
        ray = ray_module()
        self._call = ray.remote(_call).options(num_cpus=1, max_retries=10)
        self._ray_error = ray.exceptions.RayError
        self._checked: set[str] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call ``fn`` on a machine of the cluster."""
        future: Future[Any] = Future()

        def done(answer: Future[Any]) -> None:
            try:
                future.set_result(self._value(answer))
            except Exception as error:
                future.set_exception(error)

        self._call.remote(fn, args, kwargs, str(Path.cwd())).future().add_done_callback(done)
        return future

    def _value(self, answer: Future[Answer]) -> Any:
        try:
            result = answer.result()
        except self._ray_error as error:
            raise ClusterError(f"a call failed on the cluster: {last_line(error)}; {SAME}") from error
        if result.address not in self._checked:
            check_kind(result.kind, result.address)
            self._checked.add(result.address)
        if result.error is not None:
            raise result.error
        return result.value


class Answer(NamedTuple):
    """Value of a call, or an error of this package; with the versions and the address of the machine."""

    value: Any
    error: RHFedMTLError | None
    kind: dict[str, str]
    address: str


def _call(fn: Callable[..., Any], args: Any, kwargs: Any, folder: str) -> Answer:
    """Call a function in the caller's folder if it exists on this machine: paths of data may be relative to it."""
    value, raised, address = None, None, str(ray_module().util.get_node_ip_address())
    try:
        with chdir(folder) if Path(folder).is_dir() else nullcontext():
            value = fn(*args, **kwargs)
    except RHFedMTLError as error:
        raised = error
    return Answer(value, raised, kind(), address)


def _facts(recipe: Recipe) -> dict[str, Any]:
    return facts(recipe.federation())


def _sizes(recipe: Recipe) -> IntArray:
    return recipe.federation().sizes


def places_for(machines: list[ClusterNode], actors: int | None, n_tasks: int) -> list[ClusterNode]:
    """Return the machine of each actor: by default an actor on each machine, and at most an actor per station."""
    n = min(len(machines) if actors is None else actors, n_tasks)
    largest_first = sorted(machines, key=lambda node: -node.cores)
    return sorted(largest_first[i % len(machines)] for i in range(n))


def bytes_of(federation: Federation, part: Part, features: Features | None = None) -> int:
    """Return the memory of a part: its rows, the state of rows and models, and all rows if the actor reads all."""
    first, last = part.rows
    columns, width = max(1, len(federation.class_names)), federation.n_features
    row_bytes = 0
    if features:  # rows before the map and after it
        row_bytes, width = width * federation.X.dtype.itemsize, features.columns(width)
    row_bytes += width * federation.X.dtype.itemsize + 8 * (4 * columns + 6)
    reading = federation.X.nbytes if isinstance(federation, Outline) and not federation.mapped else 0
    return reading + (last - first) * row_bytes + 8 * 4 * len(part.task_names) * columns * width


def check_room(plans: list[ActorPlan], places: list[ClusterNode]) -> None:
    """Refuse actors that need more memory than their machines have."""
    needed: dict[ClusterNode, int] = {}
    for plan, node in zip(plans, places, strict=True):
        needed[node] = needed.get(node, 0) + plan.bytes
    for node, size in needed.items():
        if size > node.memory:
            raise ClusterError(
                f"the stations meant for node {node.address} take about {size / MIB:,.0f} MiB, and it has "
                f"{node.memory / MIB:,.0f} MiB for processes: add machines, take fewer rows, or let actors read "
                "only their rows (`rhfedmtl data split … --out FOLDER`, then --data saved --path FOLDER)"
            )
