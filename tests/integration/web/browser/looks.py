"""What can be measured of a page in a browser."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Locator, Page

# Relative luminance and contrast as WCAG 2 defines them, of each visible text on what is behind it.
_CONTRASTS = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const parsed = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, under) => under.map((part, i) => top[i] * top[3] + part * (1 - top[3]));
  const backdrop = (node) => {
    const layers = [];
    for (let up = node; up; up = up.parentElement) {
      layers.push(parsed(getComputedStyle(up).backgroundColor));
    }
    return layers.reduceRight((under, top) => over(top, under), [255, 255, 255]);
  };
  const opacity = (node) => {
    let left = 1;
    for (let up = node; up; up = up.parentElement) left *= Number(getComputedStyle(up).opacity);
    return left;
  };
  const luminance = (colour) => {
    const [r, g, b] = colour.map((part) => part / 255)
      .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (node, pseudo) => {
    const style = getComputedStyle(node, pseudo);
    const behind = backdrop(node);
    const colour = parsed(style.color);
    colour[3] *= opacity(node) * (pseudo ? Number(style.opacity) : 1);
    const both = [luminance(behind), luminance(over(colour, behind))];
    const [dark, light] = both.sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  const found = [];
  for (const node of document.body.querySelectorAll("*")) {
    if (!node.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
    const texts = [...node.childNodes].filter((one) => one.nodeType === 3);
    const text = texts.map((one) => one.data.trim()).join("");
    if (text) found.push([text, contrast(node)]);
    if (node.placeholder) found.push([node.placeholder, contrast(node, "::placeholder")]);
    const before = getComputedStyle(node, "::before").content;
    if (before !== "none" && before !== "normal") found.push([before, contrast(node, "::before")]);
  }
  return found;
}"""

CONTROLS = "button, input, select, textarea, a[href], summary, [tabindex='0']"


class Watch:
    """
    What a tab has asked for, and what the browser has complained of.

    Attributes:
        hosts: the hosts and ports of all requests.
        complaints: errors and warnings of the console, of scripts and of the security policy.
    """

    def __init__(self, tab: Page) -> None:
        self.hosts: set[str] = set()
        self.complaints: list[str] = []
        tab.on("request", lambda request: self._note(request.url))
        tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        tab.on("console", self._hear)
        tab.add_init_script(
            "addEventListener('securitypolicyviolation', (event) =>"
            " console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`))"
        )

    def _note(self, url: str) -> None:
        if (parts := urlsplit(url)).scheme != "data":
            self.hosts.add(parts.netloc)

    def _hear(self, message: Any) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(message.text)


def pale_texts(page: Page) -> list[tuple[str, float]]:
    """Return the visible texts whose contrast is below 4.5, with their contrast."""
    found: list[tuple[str, float]] = page.evaluate(_CONTRASTS)
    assert len(found) > 20
    return [(text, contrast) for text, contrast in found if contrast < 4.5]


def row(page: Page, name: str) -> Locator:
    """Return the row of a key, or of a slot."""
    head = page.get_by_role("rowheader", name=name, exact=True)
    return page.locator("#lock-table tbody tr", has=head)


def cell(row: Locator, name: str) -> Locator:
    """Return a field of a row by the head of its column."""
    return row.locator(f"td[data-name='{name}']")
