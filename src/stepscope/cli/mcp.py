"""`stepscope mcp`: the verbs of an assistant over the Model Context Protocol, on stdin and stdout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer


def mcp(
    runs: Annotated[Path, typer.Option(help="Folder of the runs that may be read, and that new ones go into.")] = Path(
        "runs"
    ),
) -> None:
    """Serve runs to an assistant over the Model Context Protocol (stdio): list, ask, compare, measure, fit, tune.

    Workloads of the package alone are trained, at most 2,000 steps or 10 minutes; no file is run, and no run outside
    the folder is read. Needs the extra `mcp` of the package.
    """
    sys.stdout.flush()
    server(runs).run("stdio")


def server(runs: Path) -> MCPServer[None]:
    """Return the server of one folder of runs."""
    from mcp.server.mcpserver import MCPServer

    from stepscope import __version__
    from stepscope.api.assistant import DATA, Assistant, text_or_refusal

    verbs = Assistant(runs)
    mcp_server: MCPServer[None] = MCPServer(
        "stepscope",
        version=__version__,
        instructions=f"Measures what a training step costs on this machine. {DATA} Numbers in brackets are 95 % CIs.",
        log_level="WARNING",
    )

    @mcp_server.tool(description=verbs.list_runs.__doc__)
    def list_runs(most: int = 10) -> str:
        return text_or_refusal(lambda: verbs.list_runs(most))

    @mcp_server.tool(description=verbs.ask.__doc__)
    def ask(run: str = "last") -> str:
        return text_or_refusal(lambda: verbs.ask(run))

    @mcp_server.tool(description=verbs.compare.__doc__)
    def compare(runs: list[str]) -> str:
        return text_or_refusal(lambda: verbs.compare(runs))

    @mcp_server.tool(description=verbs.measure.__doc__)
    def measure(workload: str, steps: int = 200, batch: int | None = None, threads: int | None = None) -> str:
        return text_or_refusal(lambda: verbs.measure(workload, steps, batch, threads))

    @mcp_server.tool(description=verbs.fit.__doc__)
    def fit(workload: str, memory: str | None = None, board: str | None = None, batch: int | None = None) -> str:
        return text_or_refusal(lambda: verbs.fit(workload, memory, board, batch))

    @mcp_server.tool(description=verbs.tune.__doc__)
    def tune(workload: str, minutes: float = 1.0, goal: str = "time") -> str:
        return text_or_refusal(lambda: verbs.tune(workload, minutes, goal))

    return mcp_server
