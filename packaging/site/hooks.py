"""What the pages of the repository need to become pages of the site.

The README becomes the first page. Code is coloured when the site is built. Links to files that are not pages lead to the repository. A link to a file that does not exist fails the build.
"""

import pathlib
import posixpath
import re

from mkdocs.structure.files import File
from pygments.formatters import HtmlFormatter

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: A link or a picture, outside of inline code.
LINK = re.compile(r"`[^`\n]*`|(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
ELSEWHERE = re.compile(r"[a-z]+:")


def on_files(files, config):
    text = (ROOT / "README.md").read_text()
    files.append(File.generated(config, "index.md", content=text))
    files.append(File.generated(config, "site.css", content=(pathlib.Path(__file__).parent / "site.css").read_text()))
    for theme, style in [("light", "default"), ("dark", "github-dark")]:
        colours = HtmlFormatter(style=style).get_style_defs(".codehilite")
        files.append(File.generated(config, f"code-{theme}.css", content=colours))
    return files


def on_page_markdown(markdown, page, config, files):
    is_home = page.file.src_uri == "index.md"
    source = ROOT / "README.md" if is_home else DOCS / page.file.src_uri
    here = posixpath.dirname(page.file.src_uri)

    def link(found):
        target = found.group(2)
        if target is None or ELSEWHERE.match(target):
            return found.group(0)
        path = (source.parent / target).resolve()
        if not path.exists():
            raise FileNotFoundError(f"{source}: the link to {target} leads nowhere")
        if path == ROOT / "README.md":
            new = posixpath.relpath("index.md", here or ".")
        elif path.is_relative_to(DOCS) and path.is_file():
            new = posixpath.relpath(path.relative_to(DOCS).as_posix(), here or ".")
        else:
            kind = "tree" if path.is_dir() else "blob"
            new = f"{config['repo_url']}/{kind}/main/{path.relative_to(ROOT).as_posix()}"
        return found.group(1) + new + (found.group(3) or "") + found.group(4)

    parts = re.split(r"(^```.*?^```)", markdown, flags=re.M | re.S)
    return "".join(part if at % 2 else LINK.sub(link, part) for at, part in enumerate(parts))
