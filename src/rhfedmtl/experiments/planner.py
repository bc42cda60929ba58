"""Plan before run: what a budget buys, before anything is spent.

A plan is a walk: the policy is asked as in a run, its server iterations are priced as the ledger would price them,
and nothing is learned. What the walk leaves of the suboptimality is what the model of the policy ``measured`` says
(`rhfedmtl.resources.measured`), from prior belief, or from a pilot where there is data (`rhfedmtl.experiments.pilot`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rhfedmtl.algorithms.dual import DualMethod
from rhfedmtl.data.federation import Federation
from rhfedmtl.engines.training import Run, Settings
from rhfedmtl.errors import BudgetError, ConfigError, RHFedMTLError
from rhfedmtl.experiments.pilot import GapForecast, Pilot, fly, gap_forecast
from rhfedmtl.experiments.walks import IntArray, Walk, empty_walk, walk
from rhfedmtl.maths import theory
from rhfedmtl.resources.billing import CloudEvent, Event, RoundEvent, cost_curve, event_totals, steps_affordable
from rhfedmtl.resources.costs import Cost, binding
from rhfedmtl.resources.ledger import Ledger
from rhfedmtl.resources.measured import Measured, Outlook
from rhfedmtl.resources.planning import Plan, Policy, Situation
from rhfedmtl.resources.policies import Fixed, Theoretical
