"""
Links that nobody has to write: the first `lock_ttl` or `LeaseLost` on a page leads to its entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

__all__ = ["connect"]

#: Pages whose headings are names.
PAGES = {f"reference/{page}" for page in ("options", "settings", "errors", "commands", "api")}

#: Nodes in which code is not linked.
CLOSED = (nodes.title, nodes.reference, nodes.caption)

Place = tuple[str, str]


def connect(app: Sphinx) -> None:
    """Link code that names something."""
    app.add_post_transform(LinkNames)
    app.connect("env-updated", _collect)


def _collect(_app: Sphinx, env: BuildEnvironment) -> None:
    env.redlock_names = _names(env)  # type: ignore[attr-defined]  # the environment is for this


def _names(env: BuildEnvironment) -> dict[str, Place]:
    """Return the page and anchor of everything that a piece of code may name: the headings."""
    found: dict[str, Place] = {}
    ambiguous = set()
    for page, metadata in env.metadata.items():
        slugs = metadata.get("myst_slugs", {}) if page in PAGES else {}
        for _, anchor, title in slugs.values():
            for name in {title, title.rpartition(".")[2]}:
                if found.setdefault(name, (page, anchor)) != (page, anchor):
                    ambiguous.add(name)
    names = {name: place for name, place in found.items() if name not in ambiguous}
    # The entry of an option also describes the setting for its default.
    options = {
        name.replace("lock_", "redlock_", 1): place
        for name, place in names.items()
        if name.startswith("lock_")
    }
    return {**options, **names}


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
