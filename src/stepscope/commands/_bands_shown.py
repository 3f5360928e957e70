"""What `stepscope workloads --check` trains and says: the loss after some seeded steps against its recorded band."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from stepscope.errors import DataUnavailable, MissingDependency, StepscopeError

if TYPE_CHECKING:
    from stepscope.workloads.contract import Workload


def checked(chosen: Iterable[Workload]) -> Iterator[dict[str, Any]]:
    """A row for each as it is trained; `holds` is null where it could not be judged, and `why_not` says why."""
    for workload in chosen:
        yield {"name": workload.name, **_one(workload)}


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    if row["holds"] is None:
        return f"{row['name']}: not judged: {row['why_not']}"
    verdict = "holds" if row["holds"] else "DOES NOT HOLD"
    trained = f"{row['steps']} steps of batch {row['batch']} on {row['data']}"
    loss = f"loss {row['first']:.4g} to {row['end']:.4g}"
    return f"{row['name']}: {loss} in {trained}; band {row['low']:g} to {row['high']:g}: {verdict}"


def refuse_outside(rows: Iterable[dict[str, Any]]) -> None:
    """StepscopeError with those whose loss left its band."""
    left = [row["name"] for row in rows if row["holds"] is False]
    if left:
        raise StepscopeError(
            f"the loss is not where it was recorded: {', '.join(left)}",
            "was the network, its data or an optimizer changed? bands are seed 0 on a CPU with torch 2.13",
        )


def total(rows: list[dict[str, Any]]) -> str:
    """How many hold, and how many could not be judged."""
    judged = [row["holds"] for row in rows if row["holds"] is not None]
    return f"{sum(judged)} of {len(judged)} bands hold; {len(rows) - len(judged)} not judged"


def _one(workload: Workload) -> dict[str, Any]:
    from stepscope.workloads._quality import check

    try:
        found = check(workload)
    except (DataUnavailable, MissingDependency) as error:
        return {"holds": None, "why_not": f"{error} ({error.hint})" if error.hint else str(error)}
    if found is None:
        return {"holds": None, "why_not": workload.no_band}
    return {"holds": found.holds, "first": found.first, "end": found.end, **vars(found.band)}
