"""The images of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
IMAGES = ROOT / "docs" / "images"
MOST_BYTES = 150_000

_image = re.compile(r"!\[([^\]]*)\]\((?![a-z]+:)([^)\s]+)")


def named() -> dict[Path, str]:
    """Return the files that pages name as images, with what stands for them."""
    return {
        (page.parent / target).resolve(): text
        for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        for text, target in _image.findall(page.read_text())
    }


def test_images_that_pages_name_exist() -> None:
    assert named()
    assert not [path for path in named() if not path.is_file()]


def test_images_have_a_text_for_those_who_do_not_see_them() -> None:
    assert not [path for path, text in named().items() if not text.strip()]


def test_there_is_no_image_that_no_page_names() -> None:
    assert not [path for path in IMAGES.iterdir() if path not in named()]


def test_images_are_small() -> None:
    assert not [path for path in IMAGES.iterdir() if path.stat().st_size > MOST_BYTES]
