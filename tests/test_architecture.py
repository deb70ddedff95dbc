"""
The arrows of docs/architecture.md, read from the code's own imports.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Who may not import whom, at any depth. The traced image holds server and client alone.
FORBIDDEN = {
    "server": {"client", "quiclab", "benchmarks", "docker", "invoke", "pydantic", "rich", "tasks"},
    "client": {"quiclab", "benchmarks", "docker", "invoke", "pydantic", "rich", "tasks"},
}
QUICLAB_MAY_IMPORT_OF_SERVER = {"server.probes"}


def _modules(package: str) -> dict[str, Path]:
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield node.module


@pytest.mark.parametrize("package", FORBIDDEN)
def test_what_is_traced_knows_nothing_of_the_lab(package: str) -> None:
    """Server and client import neither the lab nor what only the lab needs."""
    seen = {
        (name, imported)
        for name, path in _modules(package).items()
        for imported in _imports(path)
        if imported.split(".")[0] in FORBIDDEN[package]
    }
    assert seen == set()


def test_the_lab_imports_of_the_server_only_its_probe_table() -> None:
    """Everything else between the two goes over the control socket and files."""
    seen = {
        ".".join(imported.split(".")[:2])
        for path in _modules("quiclab").values()
        for imported in _imports(path)
        if imported.split(".")[0] in {"server", "client"}
    }
    assert QUICLAB_MAY_IMPORT_OF_SERVER == seen


def test_only_the_tasks_know_of_the_benchmarks() -> None:
    """What is measured does not know its measure."""
    seen = {
        name
        for package in ("server", "client", "quiclab")
        for name, path in _modules(package).items()
        for imported in _imports(path)
        if imported.split(".")[0] == "benchmarks"
    }
    assert seen == set()


@pytest.mark.parametrize("package", ["server", "client", "quiclab", "benchmarks"])
def test_modules_form_no_cycle(package: str) -> None:
    """Following imports from any module never leads back to it."""
    modules = _modules(package)
    arrows = {
        name: {found for found in _imports(path) if found in modules and found != name}
        for name, path in modules.items()
    }
    while leaves := {name for name, targets in arrows.items() if not targets & arrows.keys()}:
        for name in leaves:
            del arrows[name]
    assert sorted(arrows) == []
