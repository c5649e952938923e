"""Imports point one way: base <- access <- sessions <- … <- composition."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
APPS = ["access_app", "sessions_app", "runs_app", "memory_app", "context_app"]
# What of the project package stands above the apps; the rest of it is below them.
COMPOSITION = {
    "agentstate.asgi",
    "agentstate.claims",
    "agentstate.demo",
    "agentstate.health",
    "agentstate.live",
    "agentstate.navigation",
    "agentstate.overview",
    "agentstate.preparation",
    "agentstate.router",
    "agentstate.serving",
    "agentstate.settings",
    "agentstate.supervisor",
    "agentstate.uploads",
    "agentstate.urls",
    "agentstate.views",
    "agentstate.wsgi",
}
# Inside an app the edges translate and delegate; they never import one another.
# `urls` and `routing` mount the others, as `agentstate.urls` mounts the apps.
MOUNTS = {"urls", "routing"}
# Work for later is enqueued where it arises, in the transaction it belongs to.
ENQUEUED = {"jobs"}
EDGES = {"api", "views", "consumers", "admin", "jobs", "management"}


def modules() -> Iterator[tuple[str, Path]]:
    for package in ["agentstate", *APPS]:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "migrations" not in path.parts:
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                yield name.removesuffix(".__init__"), path


MODULES = dict(modules())


def imports(name: str) -> Iterator[str]:
    """Every module of ours that `name` imports, at any depth of its code."""
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{name}: write imports in full"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in MODULES else node.module


def is_composition(name: str) -> bool:
    return name in COMPOSITION or name.startswith("agentstate.management")


def level(name: str) -> int:
    top = name.partition(".")[0]
    if top in APPS:
        return 1 + APPS.index(top)
    return 1 + len(APPS) if is_composition(name) else 0


@pytest.mark.parametrize("name", MODULES)
def test_no_import_points_up(name):
    ours = [found for found in imports(name) if found in MODULES]
    upward = [found for found in ours if level(found) > level(name)]
    assert upward == []


@pytest.mark.parametrize("name", [name for name in MODULES if name.count(".") >= 1])
def test_edges_of_an_app_do_not_import_one_another(name):
    app, edge, *_ = name.split(".")
    if app not in APPS or edge not in EDGES:
        return
    others = {f"{app}.{other}" for other in EDGES - ENQUEUED - {edge}}
    crossing = [
        found
        for found in imports(name)
        if any(found == other or found.startswith(f"{other}.") for other in others)
    ]
    assert crossing == []


def test_the_services_of_an_app_do_not_know_its_edges():
    for name in MODULES:
        app, _, rest = name.partition(".")
        if app in APPS and rest and rest.partition(".")[0] not in EDGES | MOUNTS:
            for found in imports(name):
                part = found.removeprefix(f"{app}.").partition(".")[0]
                if found.startswith(f"{app}.") and name != f"{app}.apps":
                    # A service may enqueue a job, in the transaction it belongs to.
                    assert part not in EDGES - ENQUEUED, f"{name} imports {found}"


def test_only_settings_reads_the_environment():
    allowed = {"agentstate.env", "agentstate.settings"}
    starters = {  # they hand an environment to other processes
        "agentstate.embedded",
        "agentstate.metrics",
        "agentstate.serving",
        "agentstate.supervisor",
        "agentstate.wsgi",
        "agentstate.management.commands.demo_agent",
    }
    readers = {n for n, p in MODULES.items() if "os.environ" in p.read_text()}
    assert readers <= allowed | starters
