"""
Where a fault is planted: found again although files, functions and names have changed.

An edit names a file, a function in it, and what stands there. It is looked for there first, then in
functions of that name in other files, then in all of the file, then in all of the package; in each
of them as it is written, then with as few other names as possible. One match is the place; several
are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from evidence.planted.sources import Package, Region, Token, tokens_of


@dataclass(frozen=True, slots=True)
class Edit:
    """
    A piece of a function, and what it becomes.

    Attributes:
        where: `FILE::FUNCTION`; a class or a constant may stand for the function, and a file alone
            for what is in none of them.
        old: any of its code; line breaks, spaces and comments make no difference.
        new: what stands there instead; further lines are indented as the first one is.
    """

    where: str
    old: str
    new: str


class StaleEditError(Exception):
    """The shipped code no longer has what an edit names, or has it several times."""


@dataclass(frozen=True, slots=True)
class Place:
    """
    Where an edit applies.

    Attributes:
        region: the function, or the file.
        start: where it begins in the file.
        end: where it ends.
        names: what each name of the edit is called there.
    """

    region: Region
    start: int
    end: int
    names: dict[str, str]

    @property
    def renamed(self) -> int:
        """Return how many names are others there."""
        return sum(name != there for name, there in self.names.items())

    @property
    def shown(self) -> str:
        """Return its file, line and text."""
        line = self.region.source.count("\n", 0, self.start) + 1
        text = " ".join(self.region.source[self.start : self.end].split())
        return f"{self.region.path}:{line}: {text}"


def place_of(edit: Edit, package: Package) -> Place:
    """
    Return the one place at which an edit applies.

    Raises:
        StaleEditError: there is none, or several; it names them, or the nearest candidate.
    """
    several: list[Place] = []
    for regions in _nearer_first(edit, package):
        for is_renamed in (False, True):
            found = _unique(_matches(edit.old, region, renamed=is_renamed) for region in regions)
            fewest = min((place.renamed for place in found), default=0)
            found = [place for place in found if place.renamed == fewest]
            if len(found) == 1:
                return found[0]
            several = several or found
    told = "several times" if several else "nowhere; the nearest is"
    shown = [place.shown for place in several] or [_nearest(edit, package)]
    raise StaleEditError(
        f"{edit.where} has this {told}; write the fault anew:\n  {edit.old}\n"
        + "\n".join(f"  {line}" for line in shown)
    )


def text_at(place: Place, edit: Edit) -> str:
    """Return what an edit puts at its place, with the names and the indentation found there."""
    suffix = Path(place.region.path).suffix
    pieces, end = [], 0
    for token in tokens_of(edit.new, suffix):
        pieces += [edit.new[end : token.start], place.names.get(token.text, token.text)]
        end = token.end
    text = "".join([*pieces, edit.new[end:]])
    before = place.region.source[: place.start].rpartition("\n")[2]
    indentation = before[: len(before) - len(before.lstrip())]
    return text.replace("\n", f"\n{indentation}")


def _nearer_first(edit: Edit, package: Package) -> Iterator[list[Region]]:
    path, _, name = edit.where.partition("::")
    last = name.rpartition(".")[2]
    if name:
        yield [one for one in package.regions if (one.path, one.name) == (path, name)]
        yield [one for one in package.regions if one.last_name == last]
    yield [one for one in package.files if one.path == path]
    yield [one for one in package.files if one.path.endswith(Path(path).suffix)]


def _unique(found: Iterator[Iterator[Place]]) -> list[Place]:
    """Return each place once: a class has what its methods have."""
    places = [place for matches in found for place in matches]
    return list({(one.region.path, one.start): one for one in places}.values())


def _matches(old: str, region: Region, *, renamed: bool) -> Iterator[Place]:
    wanted = tokens_of(old, Path(region.path).suffix)
    there = region.tokens
    for at in range(len(there) - len(wanted) + 1):
        candidate = there[at : at + len(wanted)]
        names = _names(wanted, candidate, renamed=renamed)
        if names is not None:
            yield Place(region, candidate[0].start, candidate[-1].end, names)


def _names(wanted: list[Token], there: list[Token], *, renamed: bool) -> dict[str, str] | None:
    """Return what the names are called there; None if it is other code."""
    names: dict[str, str] = {}
    for want, have in zip(wanted, there, strict=True):
        if renamed and want.may_be_renamed and have.may_be_renamed:
            if names.setdefault(want.text, have.text) != have.text:
                return None
        elif want.text != have.text:
            return None
    return names if len(set(names.values())) == len(names) else None


def _nearest(edit: Edit, package: Package) -> str:
    """Return the lines most like what is looked for: of the function, or else of any."""
    regions = next((regions for regions in _nearer_first(edit, package) if regions), package.files)
    count = len(edit.old.strip().splitlines())
    best, shown = -1.0, "no code at all"
    matcher = SequenceMatcher(b=re.sub(r"\s+", " ", edit.old.strip()))
    for region in regions:
        lines = region.source[region.start : region.end].splitlines()
        first = region.source.count("\n", 0, region.start) + 1
        for at in range(len(lines)):
            text = " ".join(" ".join(lines[at : at + count]).split())
            matcher.set_seq1(text)
            if matcher.real_quick_ratio() > best and (ratio := matcher.ratio()) > best:
                best, shown = ratio, f"{region.path}:{first + at}: {text}"
    return shown
