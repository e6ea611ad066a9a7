"""``conformance plan``: how many samples, how long, and what a pass would rule out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from conformance.cli.options import run_options, settings_from
from conformance.text import one_line

if TYPE_CHECKING:
    from conformance.plan import Case, RunPlan
    from conformance.runner import Settings


@click.command("plan")
@run_options
@click.option("--no-timing", is_flag=True, help="Do not run the engine to estimate the time.")
def plan_command(no_timing: bool, **options: Any) -> None:
    """Say what a run would do, before anything is judged."""
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from conformance.runner import prepare  # noqa: PLC0415
    from conformance.served.plan import ServedCase  # noqa: PLC0415
    from conformance.verifier.plan import VerifierCase  # noqa: PLC0415

    settings = settings_from(**options)
    plan = prepare(settings)
    table = Table()
    for heading in ("case", "requests per arm", "time", "a pass rules out"):
        table.add_column(heading, overflow="fold")
    total = 0.0
    for case in plan.cases:
        if case.workload is None:
            why = case.error or f"not claimed: {case.refusal}"
            table.add_row(Text(one_line(case.id)), "none", "", Text(one_line(why)))
            continue
        lines = "\n".join(_forecast(case, plan))
        seconds = None if no_timing else _seconds(case, plan, settings)
        total += seconds or 0.0
        time = "" if seconds is None else _duration(seconds / settings.jobs)
        table.add_row(
            Text(one_line(case.id)),
            str(case.workload)
            if isinstance(case, (VerifierCase, ServedCase))
            else f"{case.workload.requests:,} x {case.workload.new_tokens} tokens",
            time,
            lines,
        )
    console = Console()
    console.print(table)
    notes = [
        f"alpha {plan.alpha:g} is split over {plan.test_count} tests, {plan.level:.2g} each; what "
        f"a pass rules out is caught with probability {plan.profile.power:.1%} or more.",
    ]
    if total:
        notes.append(
            f"Estimated time inside the engine on {settings.jobs} worker(s): "
            f"{_duration(total / settings.jobs)}."
        )
    for line in notes:
        console.print(line, highlight=False)


def _forecast(case: Case, plan: RunPlan) -> list[str]:
    from conformance.forecast import forecast  # noqa: PLC0415
    from conformance.served import plan as served  # noqa: PLC0415
    from conformance.verifier.forecast import forecast_lines  # noqa: PLC0415
    from conformance.verifier.plan import VerifierCase  # noqa: PLC0415

    if isinstance(case, served.ServedCase):
        return list(served.forecast_lines(case, plan))
    if isinstance(case, VerifierCase):
        return list(forecast_lines(case, plan))
    seen = forecast(case, plan)
    parts = [
        (seen.greedy_rate, "{:.2%} of greedy tokens changed"),
        (seen.first_token_tv, "first token off by TV {:.3f}"),
        (seen.leak, "{:.1%} of the draft leaking in"),
        (seen.rank_shift, "likely tokens off by a share of {:.3f}"),
    ]
    return [text.format(value) for value, text in parts if value is not None]


def _seconds(case: Case, plan: RunPlan, settings: Settings) -> float | None:
    """Time a few requests of both arms, and scale; None if the engine will not answer."""
    from conformance.served.plan import ServedCase  # noqa: PLC0415
    from conformance.verifier.gather import seconds_needed  # noqa: PLC0415
    from conformance.verifier.plan import VerifierCase  # noqa: PLC0415

    if isinstance(case, ServedCase):
        return None  # requests may cost money: none is sent to find out how long they take
    if isinstance(case, VerifierCase):
        return seconds_needed(case, plan.seed, settings.timeout, settings.python)
    from conformance.gather import arm_requests  # noqa: PLC0415
    from conformance.pool import Task, Worker  # noqa: PLC0415

    worker = Worker(settings.timeout, settings.python)
    total = 0.0
    try:
        for arm in case.arms:
            requests = arm_requests(plan, case, arm)
            few = min(4, len(requests))
            # the first batch pays for loading and warming up, the second tells how fast the
            # engine answers, the third how much a full batch gains
            taken = 0.0
            for size in (few, few, min(len(requests), case.capabilities.max_batch, 64)):
                outcome = worker.generate(
                    Task(None, case.engine, case.oracle.probe.pair, tuple(requests[:size]))
                )
                if outcome.error is not None:
                    return None
                taken = outcome.seconds / size
            total += taken * len(requests)
    finally:
        worker.close()
    return total


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
