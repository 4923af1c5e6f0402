"""
Links that nobody has to write: the first `lock_ttl` or `LeaseLost` on a page leads to its entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

from .described import options, settings

if TYPE_CHECKING:
    from docutils.nodes import Element
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

__all__ = ["connect"]

OURS = "celery_redlock."
#: Nodes in which code is not linked.
CLOSED = (nodes.title, nodes.reference, nodes.caption)

Place = tuple[str, str]


def connect(app: Sphinx) -> None:
    """Link code that names something, and let other code be code."""
    app.add_post_transform(LinkNames)
    app.connect("env-updated", _collect)
    app.connect("missing-reference", _plain_code)


def _plain_code(_app: Sphinx, _env: Any, node: Element, content: Element) -> Element | None:
    # Docstrings put all code in backticks; only some of it is documented.
    return content if node.get("reftype") == "obj" else None


def _collect(_app: Sphinx, env: BuildEnvironment) -> None:
    env.redlock_names = _names(env)  # type: ignore[attr-defined]  # the environment is for this


def _names(env: BuildEnvironment) -> dict[str, Place]:
    """Return the page and anchor of everything that a piece of code may name."""
    found: dict[str, Place] = {}
    labels = env.domains.standard_domain.anonlabels
    for entry in (*options(), *settings()):
        place = labels.get(entry.name.replace("_", "-"))
        if place is not None:
            found[entry.name] = place
            # The entry of an option also describes the setting for its default.
            found.setdefault(entry.name.replace("lock_", "redlock_", 1), place)
    ambiguous = set()
    for full, entry in env.domains.python_domain.objects.items():
        place = (entry.docname, entry.node_id)
        for name in {full, full.removeprefix(OURS), full.rpartition(".")[2], _tail(full)}:
            if found.setdefault(name, place) != place:
                ambiguous.add(name)
    return {name: place for name, place in found.items() if name not in ambiguous}


def _tail(full: str) -> str:
    """Return the last two parts of a name: a class and its member."""
    return ".".join(full.split(".")[-2:])


class LinkNames(SphinxPostTransform):
    """Turns the first inline code on a page that names an entry of the reference into a link."""

    default_priority = 400

    def run(self, **_: Any) -> None:
        """Look through one page."""
        docname = self.env.docname
        names: dict[str, Place] = self.env.redlock_names  # type: ignore[attr-defined]
        linked: set[Place] = set()
        for code in list(self.document.findall(nodes.literal)):
            place = names.get(code.astext().removesuffix("()"))
            if place is None or place in linked or place[0] == docname or _closed(code):
                continue
            linked.add(place)
            link = make_refnode(self.app.builder, docname, *place, code.deepcopy())
            code.replace_self(link)


def _closed(code: nodes.Node) -> bool:
    node = code.parent
    while node is not None:
        if isinstance(node, CLOSED):
            return True
        node = node.parent
    return False
