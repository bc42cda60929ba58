"""Remove a terminal for good: take out its share, train the others further, and write a statement about the models.

`rhfedmtl network forget` with ``--target-gap`` calls `remove` for a running network. The statement (`models.removal`)
bounds the distance of the models from the models of a network that never had the terminal.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rhfedmtl.deploy.operator import Operator
from rhfedmtl.errors import ConfigError
from rhfedmtl.models.model_file import VERSION
from rhfedmtl.models.removal import removal
from rhfedmtl.models.task_models import TaskModels
from rhfedmtl.training.privacy import Privacy

STATEMENT = "removal"


def remove(
    folder: Path, terminal: int, target_gap: float, budget: list[str] | None, privacy: str = "", out: Path | None = None
) -> dict[str, Any]:
    """Forget a terminal of a running network, train to the target gap, and write models and statement.

    Parameters
    ----------
    folder : Path
        Folder of the network.
    terminal : int
        Terminal to remove.
    target_gap : float
        Duality gap at which the training ends.
    budget : list[str], optional
        Limits, as for ``--budget``.
    privacy : str
        Bound, as in "epsilon=1,delta=1e-6", for an additional model file with noise; empty for no such file.
    out : Path, optional
        Folder for the files.

    Returns
    -------
    dict
        The statement.
    """
    bound = Privacy.parse(privacy) if privacy else None
    out = out or folder.with_name(f"{folder.name}-without-{terminal}")
    operator = Operator(folder)
    operator.command("forget", terminal=terminal, certified=True)
    operator.command("train", budget=budget, target_gap=target_gap)
    training = operator.follow(lambda _: None)
    if training["state"] != "ended":
        why = training.get("error", "")
        raise ConfigError(f"terminal {terminal} is out, but the training has {training['state']}: {why}")
    operator.export(out)
    models = TaskModels.load(out / "model.npz")
    statement, noised = removal(models, terminal, target_gap, bound)
    statement |= {"rhfedmtl": VERSION, "certified_round": training["certified_round"], "saved": str(out)}
    (out / f"{STATEMENT}.json").write_text(json.dumps(statement, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (out / f"{STATEMENT}.txt").write_text(f"{statement['words']}\nTrusted: {statement['trusted']}.\n", encoding="utf-8")
    if noised is not None:
        provenance = {"rhfedmtl": VERSION, "removal": statement}
        replace(models, models=noised, certificate=None, ledger={}, provenance=provenance, curves=None).save(
            out / "released.npz"
        )
    return statement
