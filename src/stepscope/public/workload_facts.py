"""`stepscope.workload_facts`: what can be trained, with parameters and FLOPs, as `stepscope workloads --json`."""

from __future__ import annotations

from typing import Any

from stepscope.studies.counted_workloads import chosen_workloads, counted


def workload_facts(*names: str, tier: str | None = None) -> list[dict[str, Any]]:
    """What is known of these workloads, or of all, without training them: a dictionary each.

    Keys: name, domain, summary, tiers, input_shape, default_batch, parameters, flops_forward and flops_training (a
    sample; 1 MAC = 2 FLOPs; None where they cannot be counted, with the reason in flops_not_counted), counted_with
    (the torch that counted), data, data_kind. tier: smoke, paper-2019, paper-low-power or edge alone.
    Raises UnknownName, MissingDependency.
    """
    return counted(chosen_workloads(names, tier))
