"""
How the pages are built: `make docs`. Nothing is fetched while they are, or when they are read.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "celery-redlock"
author = "The celery-redlock developers"
copyright = author  # Sphinx's name for it

extensions = ["myst_parser", "redlock_docs"]
exclude_patterns = ["_ext", "_static"]

myst_heading_anchors = 4

html_theme = "furo"
html_title = "celery-redlock"
html_static_path = ["_static"]
html_css_files = ["redlock.css"]
html_copy_source = False
html_search_scorer = str(HERE / "_ext" / "search_scorer.js")
html_show_copyright = False
highlight_language = "none"  # a block that names none is output
pygments_dark_style = "a11y-high-contrast-dark"
