"""The loop of a run: Algorithm 1 on the network of the run.

`Run.learn` calls `learn`. The loop decides nothing: the policy plans, the ledger refuses, the roles
behind the network compute, and the certification says how good the models are. `algorithm1.py` has the same steps in
plain NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rhfedmtl.policies.base import Policy, smallest_steps

if TYPE_CHECKING:
    from rhfedmtl.training.checkpoint import Keeper
    from rhfedmtl.training.result import Watcher
    from rhfedmtl.training.run import Run


def learn(run: Run, policy: Policy, watch: Watcher | None, keep: Keeper | None) -> str:
    """Run server iterations until the policy, a budget, a target or the limit on rounds ends them; return the reason.

    ``watch`` is called after every BS iteration and ends the run by returning False; ``keep`` writes checkpoints. A run
    that goes on from a checkpoint may be in the middle of a server iteration. BudgetError is raised if the budget
    cannot pay even the first round.
    """
    state, accounting, network, environment = run.state, run.accounting, run.network, run.environment
    while True:
        if state.plan is None:
            if (reason := run.reason_to_end()) is not None:
                return reason
            run.update_members()
        situation = run.situation()

        if state.plan is None:
            # 1. Plan H of every terminal and K of every station.
            plan = policy.plan(situation)

            # 2. Begin only if the budget pays this server iteration with its first BS iteration.
            if plan is None or not run.pricing.can_begin(situation, plan):
                smallest = smallest_steps(situation, getattr(policy, "least_steps", 1))
                return run.pricing.reason_or_error(situation, plan, smallest)

            # 3. Broadcast the anchors: the reference r and λ of every station.
            run.broadcast_anchors(situation, plan)
            state.plan, state.rounds_done = plan.compact(), 0

        plan, interrupted = state.plan, False
        while not (state.iteration_is_over or interrupted):
            # 4. Reserve the worst case of the next BS iteration.
            planned, models = run.pricing.next_round(situation, plan)
            worst_case = accounting.worst(planned)
            if state.round >= run.settings.max_rounds or not accounting.ledger.can_afford(worst_case):
                break
            reservation = accounting.reserve(worst_case)
            state.round, state.last_sent = planned.round, models

            # 5. Every terminal takes H steps of dual ascent, or sends a gradient. The stations merge the updates.
            event, arrives = planned, None
            if environment is not None:
                event, arrives = environment.start_round(planned, accounting.ledger.cost, network)
            steps = event.steps
            outcome = network.round(event.round, steps, arrives)
            if environment is not None:
                event = environment.end_round(event)

            # 6. Charge the resources really used, lost work included, and record the round. The certificate reads both.
            accounting.settle(reservation, event)
            run.record_round(event, steps, outcome, plan.solver)

            # 7. Certify, if it is due: duality gap, best models, test metrics.
            if run.certification.is_due(situation, plan.solver):
                run.collect_reports()
                run.try_to_certify(situation)

            # 8. Show progress, and write a checkpoint if it is time.
            interrupted = run.interrupted = watch is not None and watch(run.progress(plan)) is False
            if keep is not None and (interrupted or keep.due):
                keep.keep(run)

        # 9. Couple: the stations report v_b, from which the cloud computes the next anchors in step 3.
        state.plan = None
        run.collect_reports()
        if interrupted:
            return "interrupted"
