"""The report: what ``anode reproduce`` found, as one HTML page that needs nothing but a browser."""

from __future__ import annotations

import json
import re
import struct
import sys
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256
from html import escape
from importlib import resources
from pathlib import Path
from reprlib import repr as shortened
from string import Template
from typing import Any

from anode.files import DamagedFileError, read_json, write_text

FORMAT = "anode results 1"
PAPER = "https://arxiv.org/abs/1904.01681"
MARKS = {"held": "✓", "not held": "✗", "inconclusive": "?"}  # a verdict is not told by colour alone
KINDS = {"fig": "Figure", "table": "Table"}
VOID = {"img"}
DASH = "\N{EN DASH}"
# A name of a study or an image: it cannot leave its folder, needs no quoting in an address, and since it does not start
# with an underscore, as the page's own anchors do, cannot be one of them.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# What a file of a kind starts with, and where and how its width and height are stored.
IMAGES = {".png": (b"\x89PNG\r\n\x1a\n", 16, ">II"), ".gif": (b"GIF8", 6, "<HH")}


def write_report(folder: Path) -> Path:
    """Write the page about the results in a folder.

    Args:
        folder: Holds ``anode-results.json``, and in ``figures`` the studies it lists and their images.

    Returns:
        The page, ``report.html`` in the folder. All but the links to vector graphics and data works without the folder.

    Raises:
        DamagedFileError: If the results are missing, incomplete or not what they should be; no page is written then.
    """
    return write_text(folder / "report.html", page(folder))


def page(folder: Path) -> str:
    """The text of the page: the same for the same results."""
    results = read(folder / "anode-results.json")
    found = results.text("format")
    require(found == FORMAT, results.where, f"has the format {shortened(found)}; this version reads {FORMAT!r}")
    studies = {name: read_study(folder / "figures", name) for name in study_names(results)}
    claims = results.records("claims")
    body = [
        element(
            "header",
            element("span", "anode reproduce", class_="eyebrow"),
            element("h1", results.text("title")),
            element("p", f"{summary(results, claims)}.", class_="lead"),
        ),
        contents(studies),
        element(
            "main",
            claims_section(claims, studies),
            *(study_section(folder / "figures", name, study, claims) for name, study in studies.items()),
            environment_section(results),
            timings_section(results),
        ),
        footer(),
    ]
    script = own_file("report.js")
    text = Template(own_file("report.html")).substitute(
        policy=policy(script),
        title=escape(results.text("title")),
        style=own_file("report.css"),
        body="\n".join(body),
        script=script,
    )
    return text.encode("utf-8", "replace").decode("utf-8")  # JSON can hold halves of characters, a file cannot


def policy(script: str) -> str:
    """Lets the browser load nothing and run the page's own script alone: a second lock, should a text slip through."""
    digest = b64encode(sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def own_file(name: str) -> str:
    """A file that lies beside this module."""
    return (resources.files("anode") / name).read_text(encoding="utf-8")


# Reading


def require(condition: bool, where: str, problem: str) -> None:
    """Raise :class:`DamagedFileError` about a place in a file unless the condition holds."""
    if not condition:
        raise DamagedFileError(f"{where}: {problem}")


def is_number(value: Any) -> bool:
    """Whether a value is a finite number; Python's JSON reader lets others pass."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


class Record:
    """A JSON object that knows where it stands, so that what is wrong with it can be said in one line."""

    def __init__(self, where: str, content: Any) -> None:
        require(isinstance(content, dict), where, f"takes an object, got {shortened(content)}")
        self.where = where
        self.content: dict[str, Any] = content

    def get(self, key: str) -> Any:
        """What stands under a key, which must be there."""
        require(key in self.content, self.where, f"has no {key!r}")
        return self.content[key]

    def check(self, condition: bool, key: str, takes: str) -> None:
        """Complain about what stands under a key unless the condition holds."""
        require(condition, self.where, f"{key!r} takes {takes}, got {shortened(self.content[key])}")

    def text(self, key: str) -> str:
        """A text."""
        value = self.get(key)
        self.check(isinstance(value, str), key, "a text")
        return value

    def number(self, key: str) -> float:
        """A number from 0; a whole one stays whole."""
        value = self.get(key)
        self.check(is_number(value) and value >= 0, key, "a number from 0")
        return value

    def items(self, key: str) -> list[Any]:
        """A list."""
        value = self.get(key)
        self.check(isinstance(value, list), key, "a list")
        return value

    def records(self, key: str) -> list[Record]:
        """A list of objects."""
        return [Record(f"{self.where}, {key}[{i}]", item) for i, item in enumerate(self.items(key))]

    def record(self, key: str) -> Record:
        """An object."""
        return Record(f"{self.where}, {key}", self.get(key))

    def shown(self, key: str) -> str:
        """A value of any simple kind, as it is shown in a table; nothing, or none at all, is a dash."""
        return cell(self.content.get(key), f"{self.where}, {key}")


def read(path: Path) -> Record:
    """A file that holds an object."""
    require(path.is_file(), str(path), "is missing; run anode reproduce again")
    return Record(str(path), read_json(path))


def study_names(results: Record) -> list[str]:
    """The studies, each of which may be listed once."""
    names = results.items("studies")
    plain = all(isinstance(name, str) and NAME.fullmatch(name) for name in names)
    results.check(plain and len(set(names)) == len(names), "studies", "plain names, none twice")
    return names


def read_study(folder: Path, name: str) -> Record:
    """The file of a study."""
    study = read(folder / f"{name}.json")
    require(study.text("id") == name, study.where, f"is about {shortened(study.text('id'))}, not {name!r}")
    return study


def image_path(folder: Path, name: Any, where: str) -> Path:
    """Where an image lies: in the folder, and nowhere else."""
    plain = isinstance(name, str) and NAME.fullmatch(name) is not None
    require(plain, where, f"'images' takes plain file names, got {shortened(name)}")
    path = folder / name
    require(path.suffix in (*IMAGES, ".svg"), where, f"'images' takes .png, .gif and .svg files, got {name!r}")
    require(path.is_file(), where, f"names the image {name!r}, which is missing")
    return path


def cell(value: Any, where: str) -> str:
    """A value of a table as text."""
    if isinstance(value, list):
        return ", ".join(cell(item, where) for item in value) or DASH
    require(not isinstance(value, dict), where, f"takes a text or a number, got {shortened(value)}")
    if value is None or isinstance(value, bool):
        return {None: DASH, True: "yes", False: "no"}[value]
    return str(value)


# Writing


class Markup(str):
    """Text that is HTML already. All other text is escaped on its way into an element, so none can be forgotten."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str) -> Markup:
    """An HTML element; ``class_`` is the attribute class, ``aria_label`` is aria-label."""
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    content = "".join(child if isinstance(child, Markup) else escape(child) for child in children)
    return Markup(f"<{name}{given}>" if name in VOID else f"<{name}{given}>{content}</{name}>")


def table(name: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """A table in a box of its own, which scrolls sideways where the page is narrow."""
    head = element("tr", *(element("th", column, scope="col") for column in columns))
    body = [
        element("tr", element("th", first, scope="row"), *(element("td", value) for value in others))
        for first, *others in rows
    ]
    content = element("table", element("thead", head), element("tbody", *body))
    return element("div", content, class_="scroll", tabindex="0", role="region", aria_label=name)


def definitions(pairs: Iterable[tuple[str, str]], **attributes: str) -> Markup:
    """Names and their values."""
    return element(
        "dl", *(part for name, value in pairs for part in (element("dt", name), element("dd", value))), **attributes
    )


def data_block(content: Any) -> Markup:
    """JSON for a script to read; nothing in it can end the block."""
    text = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    return Markup(f'<script type="application/json">{text}</script>')


def label(study: str) -> str:
    """What the paper calls a study.

    Example:
        >>> label("fig07"), label("table1"), label("ablation")
        ('Figure 7', 'Table 1', 'ablation')
    """
    parts = re.fullmatch(r"(fig|table)0*(\d+.*)", study)
    return f"{KINDS[parts[1]]} {parts[2]}" if parts else study


def plural(count: float, noun: str) -> str:
    """A count with its noun."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """A time as people say it.

    Example:
        >>> duration(6.24), duration(400.1), duration(4000)
        ('6.2 s', '6 min 40 s', '1 h 7 min')
    """
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    if round(seconds) < 3600:
        return f"{round(seconds) // 60} min {round(seconds) % 60} s"
    return f"{round(seconds / 60) // 60} h {round(seconds / 60) % 60} min"


# The parts of the page


def verdict_of(claim: Record) -> str:
    """What came out."""
    verdict = claim.text("verdict")
    claim.check(verdict in MARKS, "verdict", f"one of {', '.join(MARKS)}")
    return verdict


def summary(results: Record, claims: Sequence[Record]) -> str:
    """All of it in one line."""
    counts = Counter(verdict_of(claim) for claim in claims)
    others = [f"{counts[verdict]} {verdict}" for verdict in MARKS if verdict != "held" and counts[verdict]]
    outcome = ", ".join([f"{counts['held']} of {plural(len(claims), 'claim')} held", *others])
    repeats = plural(results.number("repeats"), "repeat")
    parts = [outcome if claims else "No claims checked", repeats, f"seed {results.number('seed')}"]
    return "; ".join([*parts, duration(results.number("seconds"))])


def contents(studies: dict[str, Record]) -> Markup:
    """The table of contents."""
    entries = [("_claims", "Claims", "what held and what did not")]
    entries += [(name, label(name), study.text("title")) for name, study in studies.items()]
    entries += [("_environment", "Machine", "where this was run"), ("_timings", "Time", "how long each run took")]
    links = [element("a", element("b", name), element("span", title), href=f"#{to}") for to, name, title in entries]
    return element("nav", element("ol", *(element("li", link) for link in links)), aria_label="Contents")


def badge(verdict: str, text: str, **attributes: str) -> Markup:
    """A verdict as a pill, which is a link where it has an address."""
    mark = element("span", f"{MARKS[verdict]} ", aria_hidden="true")
    kind = "a" if attributes else "span"
    return element(kind, mark, text, class_=f"badge {verdict.replace(' ', '-')}", **attributes)


def claims_section(claims: Sequence[Record], studies: dict[str, Record]) -> Markup:
    """Every claim with its verdict."""
    columns = ["#", "Claim", "Verdict", "Numbers", "Test"]
    head = element("tr", *(element("th", column, scope="col", role="columnheader") for column in columns), role="row")
    rows = [claim_row(i, claim, studies) for i, claim in enumerate(claims, 1)]
    # The roles are said aloud, because a table that is laid out as cards on a narrow screen loses them.
    content = element(
        "table",
        element("thead", head, role="rowgroup"),
        element("tbody", *rows, role="rowgroup"),
        class_="claims",
        role="table",
    )
    return element("section", element("h2", "Claims"), element("div", content, class_="wide"), id="_claims")


def claim_row(i: int, claim: Record, studies: dict[str, Record]) -> Markup:
    """A claim in the table of claims."""
    figure = claim.text("figure")
    claim.check(figure in studies, "figure", "one of the studies")
    numbers = [(number.text("name"), cell(number.get("value"), number.where)) for number in claim.records("numbers")]
    link = element("p", element("a", label(figure), href=f"#{figure}"), class_="note")
    test = [element("span", claim.text("test")), element("p", claim.text("criterion"), class_="note")]
    cells = [
        element("td", claim.text("statement"), link, class_="statement", role="cell"),
        element("td", badge(verdict_of(claim), verdict_of(claim)), class_="verdict", role="cell"),
        element("td", definitions(numbers) if numbers else "", class_="numbers", role="cell"),
        element("td", *test, role="cell"),
    ]
    number = element("th", f"{claim.number('number')}", class_="number", scope="row", role="rowheader")
    return element("tr", number, *cells, role="row", id=f"_claim-{i}")


def study_section(folder: Path, name: str, study: Record, claims: Sequence[Record]) -> Markup:
    """A study: its pictures, what they show, its numbers and how they came about."""
    checks = [
        badge(verdict_of(claim), f"Claim {claim.number('number')} {verdict_of(claim)}", href=f"#_claim-{i}")
        for i, claim in enumerate(claims, 1)
        if claim.text("figure") == name
    ]
    parts = [
        element("a", label(name), class_="eyebrow", href=f"#{name}"),
        element("h2", study.text("title")),
        element("ul", *(element("li", check) for check in checks), class_="checks") if checks else "",
        pictures(folder, name, study),
        scenes(study),
        numbers_table(study),
        protocol(study),
    ]
    return element("section", *parts, id=name)


def pictures(folder: Path, name: str, study: Record) -> Markup:
    """The images of a study with their caption; vector graphics and data are linked."""
    paths = [image_path(folder, image, study.where) for image in study.items("images")]
    images = [embedded(path, f"{label(name)}: {study.text('title')}") for path in paths if path.suffix != ".svg"]
    files = [path.name for path in paths if path.suffix == ".svg"] + [f"{name}.json"]
    links = [element("a", file, href=f"figures/{file}") for file in files]
    caption = element(
        "figcaption",
        element("div", study.text("caption"), class_="caption"),
        element("p", "Files: ", *links, class_="note"),
    )
    return element("figure", *images, caption, class_="wide")


def embedded(path: Path, title: str) -> Markup:
    """An image that is part of the page."""
    content = path.read_bytes()
    signature, offset, layout = IMAGES[path.suffix]
    require(content.startswith(signature) and len(content) > 24, str(path), f"is not a {path.suffix[1:].upper()} image")
    width, height = struct.unpack_from(layout, content, offset)
    kind = path.suffix[1:]
    return element(
        "img",
        src=f"data:image/{kind};base64,{b64encode(content).decode()}",
        alt=f"{title} ({path.stem}, {'animation' if kind == 'gif' else 'plot'})",
        width=f"{width}",
        height=f"{height}",
        decoding="async",
    )


def scenes(study: Record) -> Markup:
    """The trajectories of a study, to be turned by hand."""
    views = [scene(record) for record in study.records("scenes")]
    if not views:
        return Markup()
    hint = "Drag or use the arrow keys to turn; double-click to turn back. Large dots are where trajectories end."
    return element("div", element("div", *views, class_="scenes wide"), element("p", hint, class_="note hint"))


def scene(record: Record) -> Markup:
    """Trajectories in three dimensions, for ``report.js`` to draw."""
    title, paths, labels = record.text("title"), record.items("paths"), record.items("labels")
    record.check(bool(paths) and all(map(is_path, paths)), "paths", "lists of points with 3 finite coordinates")
    binary = all(type(value) is int and value in (0, 1) for value in labels)
    record.check(binary and len(labels) == len(paths), "labels", "0 or 1 for each path")
    rounded = [[[round(float(x), 3) + 0.0 for x in point] for point in path] for path in paths]  # -0.0 + 0.0 is 0.0
    says = f"{title}: {plural(len(paths), 'path')} in three dimensions"
    keys = [element("span", f"label {value}", class_=f"key key-{value}") for value in sorted(set(labels))]
    return element(
        "figure",
        element("canvas", tabindex="0", role="img", aria_label=f"{says}; the arrow keys turn them"),
        data_block({"paths": rounded, "labels": labels}),
        element("figcaption", element("span", title), *keys),
        class_="scene",
    )


def is_path(path: Any) -> bool:
    """Whether something is a list of points in three dimensions."""
    points = path if isinstance(path, list) else []
    return bool(points) and all(isinstance(p, list) and len(p) == 3 and all(map(is_number, p)) for p in points)


def numbers_table(study: Record) -> Markup:
    """The numbers of a study, if it has any."""
    if study.get("numbers") is None:
        return Markup()
    numbers = study.record("numbers")
    columns, rows = numbers.items("columns"), numbers.items("rows")
    numbers.check(bool(columns), "columns", "at least one column")
    whole = all(isinstance(row, list) and len(row) == len(columns) for row in rows)
    numbers.check(whole, "rows", f"rows of {plural(len(columns), 'value')}")
    shown = [[cell(value, numbers.where) for value in row] for row in (columns, *rows)]
    return table(f"Numbers: {study.text('title')}", shown[0], shown[1:])


def protocol(study: Record) -> Markup:
    """What was run, a row for each run; a setting that a run does not have is a dash."""
    runs = study.records("protocol")
    columns = list(dict.fromkeys(key for run in runs for key in run.content))
    if not columns:
        return Markup()
    content = table(f"Protocol: {study.text('title')}", columns, ([run.shown(key) for key in columns] for run in runs))
    return element("details", element("summary", f"Protocol, {plural(len(runs), 'run')}"), content)


def environment_section(results: Record) -> Markup:
    """Where it was run."""
    environment = results.record("environment")
    facts = [(key, environment.shown(key)) for key in environment.content]
    return element("section", element("h2", "Machine"), definitions(facts, class_="facts"), id="_environment")


def timings_section(results: Record) -> Markup:
    """How long it took."""
    timings = [(timing.text("name"), timing.number("seconds")) for timing in results.records("timings")]
    longest = max((seconds for _, seconds in timings), default=0) or 1
    rows = [
        element("tr", element("th", name, scope="row"), element("td", duration(seconds), bar(seconds / longest)))
        for name, seconds in timings
    ]
    total = element("tr", element("th", "All", scope="row"), element("td", duration(results.number("seconds"))))
    content = element("table", element("tbody", *rows), element("tfoot", total), class_="timings")
    return element("section", element("h2", "Time"), content, id="_timings")


def bar(share: float) -> Markup:
    """A horizontal bar; the number beside it says the same."""
    return element("span", class_="bar", style=f"width: {share:.1%}", aria_hidden="true")


def footer() -> Markup:
    """The work this is about."""
    paper = element("a", "Augmented Neural ODEs", href=PAPER)
    return element("footer", "The paper: Dupont, Doucet and Teh, ", paper, ", NeurIPS 2019.")
