"""The site: `python -m sphinx -W --keep-going docs site`, without any network."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import site_pages

from hf_capsule_mt import __version__

project = "hf_capsule_mt"
author = "hf_capsule_mt contributors"
copyright = f"{author}, Apache-2.0"
version = release = __version__
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_*"]
# GitHub's anchors of headings, to the depth that pages link to
myst_heading_anchors = 4
# two hyphens begin an option, and quotes are those of the code
smartquotes = False
# every backtick in a docstring is code
default_role = "code"

autodoc_default_options = {"members": True, "show-inheritance": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
# a method without a word of its own says nothing, in place of what its parent in transformers says
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

# what is shown as it stands, in docstrings and in blocks of no language
highlight_language = "text"

html_theme = "furo"
html_title = f"hf_capsule_mt {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
# the pages are plain text for GitHub; there is nothing to show of their source
html_show_sourcelink = False
pygments_style = "friendly"
pygments_dark_style = "monokai"


def setup(app) -> None:
    """Write the pages that are made of code, before Sphinx looks which pages there are."""
    site_pages.write(Path(app.srcdir))
    app.connect("source-read", site_pages.list_the_other_pages)
    # before napoleon, which has the priority 500
    app.connect("autodoc-process-docstring", site_pages.as_restructured_text, priority=400)
    app.connect("autodoc-process-signature", site_pages.readable_signature)
    app.connect("autodoc-skip-member", site_pages.says_nothing)
