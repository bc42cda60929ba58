"""Command line: ``network up|train|stop|export`` (a network learns) and ``status`` (how it stands)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from rhfedmtl.cli.data import AsJson
from rhfedmtl.cli.network.answers import Folder, ask, tell
from rhfedmtl.cli.options import WORK_PANEL, Budgets, option, print_json
from rhfedmtl.errors import ConfigError

Bound = Annotated[
    str | None,
    option(
        WORK_PANEL,
        "--privacy",
        "Bound on what is learned of a terminal. [that of network init]",
        metavar="epsilon=1,delta=1e-6",
    ),
]
Gap = Annotated[float | None, option(WORK_PANEL, "--target-gap", "Stop once the gap is this small.", min=0.0)]


def up(
    folder: Folder,
    local: Annotated[bool, typer.Option("--local", help="Start all nodes on this machine.")] = False,
    budget: Budgets = None,
    target_gap: Gap = None,
    privacy: Bound = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what was learned and spent before.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start a network on this machine, train, and end it; what was learned before is kept and gone on from.

    A budget is for all trainings together. For example:

    rhfedmtl network up demo-net --local --budget energy=1400 --json
    """
    from rhfedmtl.deploy.local.supervisor import bring_up

    if not local:
        raise ConfigError(
            "only --local starts nodes; on real machines each runs `rhfedmtl serve`, see docs/deploy_network.md"
        )
    if fresh:
        from rhfedmtl.deploy.local.provision import forget_all

        forget_all(folder)
    same = "the same command without --fresh" if fresh else "the same command"
    kept = f"what was learned and spent is kept in {folder}; {same} goes on from there"
    with _ended_by_hand(kept), _live(not as_json and sys.stderr.isatty()) as show:
        status = bring_up(folder, budget, target_gap, show, privacy=privacy)
    _show_training(status, as_json, f"rhfedmtl network export {folder} --out {folder}-model --offline")


@contextmanager
def _ended_by_hand(words: str) -> Iterator[None]:
    """What to say where Ctrl-C ends it."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(words) from None


@contextmanager
def _live(shown: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show the status while it changes."""
    if not shown:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.live import Live

    from rhfedmtl.cli.network.text import tree

    with Live(console=Console(stderr=True), refresh_per_second=8, transient=True) as view:
        yield lambda facts: view.update(tree(facts))


def train(
    folder: Folder,
    budget: Budgets = None,
    target_gap: Gap = None,
    privacy: Bound = None,
    follow: Annotated[bool, typer.Option("--follow", help="Show the network until the training ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """Begin a training in a running network, or go on with a larger budget.

    With --follow, Ctrl-C ends the looking on, not the training.

    Example: rhfedmtl network train demo-net --budget energy=2800 --follow
    """
    from rhfedmtl.deploy.operator import Operator

    operator = Operator(folder).started()
    spec = operator.command("train", budget=budget, target_gap=target_gap, privacy=privacy)
    if not follow:
        tell(spec, as_json)
        return
    goes_on = f"the training goes on; look again with `rhfedmtl network status {folder} --watch`"
    with _ended_by_hand(goes_on), _live(not as_json and sys.stderr.isatty()) as show:
        training = operator.follow(show)
    _show_training(training, as_json, f"rhfedmtl network export {folder} --out {folder}-model")
    if training["state"] != "ended":
        raise ConfigError(f"the training has {training['state']}: {training.get('error', '')}")


def _show_training(training: dict[str, Any], as_json: bool, export: str) -> None:
    """What a training came to, and how to get its models."""
    if as_json:
        print_json({name: value for name, value in training.items() if name not in _UNSHOWN})
    elif training["state"] == "ended":
        from rhfedmtl.cli.network.text import closing_text

        typer.echo(closing_text(training))
        typer.echo(f"next: {export}")


_UNSHOWN = ("state", "spec", "answered", "waits_for")


def stop(folder: Folder, as_json: AsJson = False) -> None:
    """End the training after the present round; what was learned is certified and kept.

    It ends within 10 seconds: after a longer round the last complete certificate counts.

    Example: rhfedmtl network stop demo-net
    """
    ask(folder, as_json, "stop")


def export(
    folder: Folder,
    out: Annotated[Path, typer.Option("--out", help="Folder for models, ledger and result.")],
    offline: Annotated[bool, typer.Option("--offline", help="From the folder of a cloud that does not run.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch models with their certificate, the ledger and the result of the last training.

    Example: rhfedmtl network export demo-net --out demo-model --offline
    """
    from rhfedmtl.deploy.operator import Operator

    files = Operator.export_offline(folder, out) if offline else Operator(folder).export(out)
    tell({"folder": str(out), "files": files}, as_json)


def status(
    folder: Folder,
    watch: Annotated[bool, typer.Option("--watch", help="Go on showing it, every second, until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a running network: who is connected, whom it waits for, round, H, accuracy, gap, what is left, errors.

    A network that has finished shows its result, and how to export it.

    Example: rhfedmtl status demo-net --watch
    """
    from rhfedmtl.deploy.operator import Operator

    operator = Operator(folder)
    if not watch and (finished := operator.last_result(folder)) is not None:
        if as_json:
            print_json(finished)
            return
        typer.echo(f"{finished['network']}  finished; its nodes do not run")
        export = f"rhfedmtl network export {quote(str(folder))} --out {quote(f'{folder.name}-model')} --offline"
        _show_training(finished["training"], False, export)
        return
    operator.started()
    if not watch:
        _show_status(operator.command("status"), as_json)
    elif not as_json and sys.stdout.isatty():
        with _live(True) as show:
            operator.watch(show)
    else:
        operator.watch(lambda facts: _show_status(facts, as_json))


def _show_status(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    from rich.console import Console

    from rhfedmtl.cli.network.text import tree

    Console().print(tree(facts))
