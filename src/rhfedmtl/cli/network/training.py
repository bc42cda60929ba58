"""Commands ``network up|train|stop|export`` and ``status``: train a network, follow it, and fetch its models.

`up` starts all nodes on this machine; the other commands talk to a running cloud through `rhfedmtl.deploy.operator`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from rhfedmtl.cli.data import AsJson
from rhfedmtl.cli.network.answers import Folder, ask, print_facts
from rhfedmtl.cli.options import WORK_PANEL, Budgets, option, print_json
from rhfedmtl.errors import ConfigError

Bound = Annotated[
    str | None,
    option(
        WORK_PANEL,
        "--privacy",
        "Bound on the privacy loss of a terminal. [as in network init]",
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
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete earlier models and spending first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start a network on this machine, train, and stop it. A network with models continues from them.

    A budget covers all trainings together. For example:

    rhfedmtl network up demo-net --local --budget energy=1400 --json
    """
    from rhfedmtl.deploy.local.supervisor import bring_up

    if not local:
        raise ConfigError(
            "`up` needs --local; on several machines, each runs `rhfedmtl serve`: see docs/deploy_network.md"
        )
    if fresh:
        from rhfedmtl.deploy.local.provision import forget_all

        forget_all(folder)
    same = "the same command without --fresh" if fresh else "the same command"
    saved = f"models and spending are saved in {folder}; {same} continues from there"
    with _interrupt_message(saved), _live(not as_json and sys.stderr.isatty()) as show:
        status = bring_up(folder, budget, target_gap, show, privacy=privacy)
    _show_training(status, as_json, f"rhfedmtl network export {folder} --out {folder}-model --offline")


@contextmanager
def _interrupt_message(message: str) -> Iterator[None]:
    """Give Ctrl-C this message."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(message) from None


@contextmanager
def _live(enabled: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a function that shows the status; it does nothing unless ``shown``."""
    if not enabled:
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
    follow: Annotated[bool, typer.Option("--follow", help="Show progress until the training ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start a training in a running network, or continue it with a larger budget.

    With --follow, Ctrl-C ends only the display, not the training.

    Example: rhfedmtl network train demo-net --budget energy=2800 --follow
    """
    from rhfedmtl.deploy.operator import Operator

    operator = Operator(folder).started()
    spec = operator.command("train", budget=budget, target_gap=target_gap, privacy=privacy)
    if not follow:
        print_facts(spec, as_json)
        return
    continues = f"the training continues; see it with `rhfedmtl network status {folder} --watch`"
    with _interrupt_message(continues), _live(not as_json and sys.stderr.isatty()) as show:
        training = operator.follow(show)
    _show_training(training, as_json, f"rhfedmtl network export {folder} --out {folder}-model")
    if training["state"] != "ended":
        raise ConfigError(f"the training has {training['state']}: {training.get('error', '')}")


def _show_training(training: dict[str, Any], as_json: bool, export: str) -> None:
    """Print the result of a training, and the command that exports its models."""
    if as_json:
        print_json({name: value for name, value in training.items() if name not in _UNSHOWN})
    elif training["state"] == "ended":
        from rhfedmtl.cli.network.text import closing_text

        typer.echo(closing_text(training))
        typer.echo(f"next: {export}")


_UNSHOWN = ("state", "spec", "answered", "waits_for")


def stop(folder: Folder, as_json: AsJson = False) -> None:
    """End the training after the current round; its models are certified and kept.

    The training ends within 10 seconds. If the round takes longer, the last complete certificate counts.

    Example: rhfedmtl network stop demo-net
    """
    ask(folder, as_json, "stop")


def export(
    folder: Folder,
    out: Annotated[Path, typer.Option("--out", help="Folder for models, ledger and result.")],
    offline: Annotated[bool, typer.Option("--offline", help="Read the folder of a cloud that does not run.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch the models with their certificate, the ledger, and the result of the last training.

    Example: rhfedmtl network export demo-net --out demo-model --offline
    """
    from rhfedmtl.deploy.operator import Operator

    files = Operator.export_offline(folder, out) if offline else Operator(folder).export(out)
    print_facts({"folder": str(out), "files": files}, as_json)


def status(
    folder: Folder,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every second until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a running network: connections, missing nodes, round, H, accuracy, gap, remaining budget, errors.

    For a finished network, show its result and the command to export it.

    Example: rhfedmtl status demo-net --watch
    """
    from rhfedmtl.deploy.operator import Operator

    operator = Operator(folder)
    if not watch and (finished := operator.last_result(folder)) is not None:
        if as_json:
            print_json(finished)
            return
        typer.echo(f"{finished['network']}  finished; its nodes are stopped")
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
