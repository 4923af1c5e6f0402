"""
How the pages are built: `make docs`. Nothing is fetched while they are, or when they are read.
"""

import sys
from pathlib import Path

import django
from django.conf import settings

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "celery-redlock"
author = "The celery-redlock developers"
copyright = author  # Sphinx's name for it

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "redlock_docs"]
exclude_patterns = ["_ext", "_static"]

# A name that docstrings give to code is linked where the reference has it, and is plain code where
# not. Types of other projects and of Python are not described here, and no list of them is fetched.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!celery_redlock).*"),
]

nitpick_ignore = [
    ("py:class", "celery_redlock.fencing.redis_script.RegisteredScript"),  # any mapped class
]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 100
add_module_names = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = "celery-redlock"
html_static_path = ["_static"]
html_css_files = ["redlock.css"]
html_copy_source = False
html_search_scorer = str(HERE / "_ext" / "search_scorer.js")
html_show_copyright = False
highlight_language = "none"  # a block that names none is output
pygments_dark_style = "a11y-high-contrast-dark"

# Models cannot be looked at without Django's own settings.
settings.configure()
django.setup()
