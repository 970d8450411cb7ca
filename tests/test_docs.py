"""Links of all Markdown pages lead to a file and a heading that exist, and so do pages that the code names."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import typer

from modyn.cli.main import app

ROOT = Path(__file__).parents[1]


def _tracked(*patterns: str) -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.splitlines()
    return [ROOT / name for name in names if (ROOT / name).exists()]


PAGES = [page for page in _tracked("*.md") if "reports" not in page.parts]


@cache
def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_to_files_and_headings() -> None:
    wrong = []
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            if not re.match(r"[a-z]+:", link) and (not target.exists() or (anchor and anchor not in _anchors(target))):
                wrong.append(f"{page.relative_to(ROOT)}: {link}")
    assert wrong == [], "\n".join(wrong)


def test_pages_that_the_code_names_exist() -> None:
    named = {
        (str(file.relative_to(ROOT)), name)
        for file in _tracked(
            "modyn/*.py", "benchmark/*.py", "examples/**", "deploy/*", "Makefile", "Dockerfile", "docker-compose.yml"
        )
        for name in re.findall(r"docs/[\w/-]+\.md", file.read_text(errors="replace"))
    }
    assert sorted(entry for entry in named if not (ROOT / entry[1]).exists()) == []


def test_documentation_stays_short() -> None:
    """Decisions are left out, because they record reasons and are not read to use Modyn."""
    pages = [page for page in _tracked("docs/*.md") if "decisions" not in page.parts]
    assert sum(len(page.read_text().split()) for page in pages) <= 50_000
    assert len((ROOT / "README.md").read_text().split()) <= 700


def test_pages_show_the_pipelines_of_the_examples() -> None:
    for page, examples in {"README.md": ["monthly"], "docs/tutorial.md": ["monthly", "accuracy"]}.items():
        shown = re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
        for block, name in zip(shown, examples, strict=True):
            assert block in (ROOT / f"examples/rides/{name}.yaml").read_text(), page


def test_files_that_the_architecture_names_exist() -> None:
    """A bare name in the list of files is in the folder that was named before it in its entry, or at the top of `modyn/`."""
    text = (ROOT / "docs/explanation/architecture.md").read_text()
    paths = [name for name in re.findall(r"`([\w/]+\.(?:py|cpp))`", text) if "/" in name]
    wrong = [name for name in paths if not (ROOT / name).exists() and not (ROOT / "modyn" / name).exists()]
    for entry in re.split(r"\n- ", text.partition("## Where to look")[2].partition("\n## ")[0]):
        folder = ROOT / "modyn"
        for name in re.findall(r"`([\w/]+/|[\w/]+\.(?:py|cpp))`", entry):
            if "/" in name:
                path = next((top / name for top in (ROOT / "modyn", ROOT) if (top / name).exists()), folder)
                folder = path if name.endswith("/") else path.parent
            elif not (folder / name).exists() and not (ROOT / "modyn" / name).exists():
                wrong.append(f"{name} in {folder.relative_to(ROOT)}")
    assert wrong == [], "\n".join(wrong)


def test_commands_that_pages_show_exist_with_their_options() -> None:
    """The changelog and the decisions are left out, because they name former commands."""
    root = typer.main.get_command(app)
    wrong = []
    for page in (page for page in PAGES if page.name != "CHANGELOG.md" and "decisions" not in page.parts):
        for shown in re.findall(r"(?:^|[`$ ])modyn ([a-z][^`\n#|]*)", page.read_text(), re.MULTILINE):
            command, words = root, shown.split()
            while words and words[0] in (commands := getattr(command, "commands", {})):
                command = commands[words.pop(0)]
            if hasattr(command, "commands") and words and not words[0].startswith("-"):
                wrong.append(f"{page.relative_to(ROOT)}: modyn {shown}: no such command")
            options = {
                name for parameter in [*command.params, *root.params] for name in [*parameter.opts, *parameter.secondary_opts]
            }
            unknown = [word for word in words if re.fullmatch(r"--[a-z][a-z-]*", word) and word not in options]
            if unknown and command is not root:
                wrong.append(f"{page.relative_to(ROOT)}: modyn {shown}: {', '.join(unknown)}")
    assert wrong == [], "\n".join(wrong)
