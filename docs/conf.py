"""How Sphinx builds the documentation: `make docs` writes HTML into docs/_build/html."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
# The reference imports Airflow, which writes a configuration into its home.
os.environ["AIRFLOW_HOME"] = str(HERE / "_build" / "airflow")
os.environ.setdefault("AIRFLOW__LOGGING__LOGGING_LEVEL", "WARNING")
sys.path.insert(0, str(HERE / "_ext"))

from airflow_provider_taskhub import __version__  # noqa: E402 - the extensions need the path above

project = "TaskHub"
author = "the TaskHub authors"
project_copyright = "Apache-2.0"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.graphviz", "taskhub_reference"]
exclude_patterns = ["_build", "_ext", "reference/_generated"]
source_suffix = {".md": "markdown"}
nitpicky = True

# Pages are Markdown. A link to a file or to a heading of a file is checked by the build: [text](../how-to/x.md#heading)
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 4

# The wheel `graphviz-pure` has the command; a `dot` of the system does as well.
graphviz_dot = str(Path(sys.executable).with_name("graphviz-pure"))
if not Path(graphviz_dot).exists():
    graphviz_dot = shutil.which("graphviz-pure") or shutil.which("dot") or "graphviz-pure"
graphviz_output_format = "svg"
# Arial, because the drawing program knows its widths. The margins leave room where a browser takes a wider font.
graphviz_dot_args = [
    "-Gfontname=Arial", "-Nfontname=Arial", "-Efontname=Arial",
    "-Gfontsize=12", "-Nfontsize=12", "-Efontsize=11",
    "-Nshape=box", "-Nstyle=rounded", "-Nmargin=0.25,0.1", "-Gbgcolor=transparent",
]  # fmt: skip

html_theme = "furo"
html_title = f"TaskHub {release}"
html_static_path = ["_static"]
html_css_files = ["taskhub.css"]
html_show_sphinx = False
html_copy_source = False

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_default_options = {"exclude-members": "__init__, model_config, model_post_init"}
python_use_unqualified_type_names = True

# Type hints and docstrings name classes of Python, of libraries and of internal modules, which have no page here.
nitpick_ignore_regex = [("py:.*", ".*")]
