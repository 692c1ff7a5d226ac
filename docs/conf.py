"""How Sphinx builds the site from these pages: `make docs`.

Sphinx with MyST and the PyData theme, because Jupyter's own projects keep them up: pages stay Markdown that GitHub
shows, the reference comes from docstrings, search needs no server, and a broken link is an error.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from llm_sandbox_nb.version import __version__

project = "llm_sandbox_nb"
version = release = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",  # a link from each docstring to its source
    "sphinx_copybutton",
]
html_theme = "pydata_sphinx_theme"
html_title = f"llm_sandbox_nb {version}"
html_extra_path = ["benchmark-report.html"]
html_theme_options: dict[str, Any] = {
    "show_prev_next": True,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
}
if "release" in tags:  # type: ignore[name-defined]  # noqa: F821 - Sphinx defines it; `docs/release.py` sets it
    site = os.environ.get(
        "DOCS_URL", ""
    )  # where the folder of all versions is, such as https://example.org/docs
    html_theme_options |= {
        "switcher": {"json_url": f"{site}/switcher.json", "version_match": version},
        "navbar_end": ["version-switcher", "theme-switcher", "navbar-icon-links"],
        "check_switcher": False,
    }
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).parent / "_static" / "scorer.js")
copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = ">>> |\\.\\.\\. |\\$ "
copybutton_prompt_is_regexp = True
smartquotes = False  # `--model` is a flag, also in a sentence, and has to be found as it is written
highlight_language = "text"  # of fences without a language: cells with a magic
html_show_sourcelink = False
html_copy_source = False
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_type_aliases = {"Listener": "Listener", "EventListener": "EventListener"}
add_module_names = False
maximum_signature_line_length = 80
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False


def setup(app: Any) -> None:
    """Write an alias of a type by its name."""

    def named(*arguments: Any) -> tuple[str | None, str | None]:
        return tuple(
            text and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text) for text in arguments[-2:]
        )  # type: ignore[return-value]

    app.connect("autodoc-process-signature", named)
