"""What axe finds wrong with a page for people who cannot see it, or not well: WCAG 2.2 AA and its best practices."""

from __future__ import annotations

from playwright.sync_api import Page
from view_page import PACKAGE

AXE = PACKAGE / "node_modules/axe-core/axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
OF_THE_PAGE = ["landmark-one-main", "page-has-heading-one", "region", "html-has-lang", "document-title"]
"""Rules about the page around what is ours."""


def violations(page: Page, within: str = "body") -> list[str]:
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate(
        """async ([within, tags, off]) => {
          const rules = Object.fromEntries(off.map(rule => [rule, { enabled: false }]));
          rules['target-size'] = { enabled: true };
          const { violations } = await axe.run(document.querySelector(within), {
            runOnly: { type: 'tag', values: tags }, rules, iframes: false });
          const said = node => [...node.any, ...node.all, ...node.none].map(one => one.message).join('; ');
          return violations.flatMap(({ id, nodes }) =>
            nodes.map(node => `${id}: ${node.target.join(' ')}: ${said(node)}`));
        }""",
        [within, RULES, OF_THE_PAGE],
    )
    assert isinstance(found, list)
    return found
