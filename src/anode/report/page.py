"""Builds the page from its sections."""

from __future__ import annotations

import struct
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib import resources
from pathlib import Path
from reprlib import repr as shortened
from string import Template

from anode.files import write_text
from anode.report.claims import MARKS, claim_badges, claims_section, verdict_of
from anode.report.markup import Markup, data_block, definitions, element, label, table
from anode.report.reading import (
    IMAGES,
    Record,
    cell,
    image_path,
    is_path,
    read,
    read_study,
    require,
    study_names,
)
from anode.words import counted, duration

FORMAT = "anode results 1"
MARKER = "anode-results.json"
PAPER_URL = "https://arxiv.org/abs/1904.01681"


def write_report(folder: Path, marker: str = MARKER) -> Path:
    """Write the report of the results in a folder.

    Args:
        folder: Has the results file, and in ``figures`` the studies that it lists and their images.
        marker: The name of the results file.

    Returns:
        The path of the page, ``report.html`` in the folder. Without the folder, only its links to vector graphics and
        data break.

    Raises:
        DamagedFileError: If the results are missing, incomplete or malformed. No page is written then.
    """
    return write_text(folder / "report.html", page(folder, marker))


def page(folder: Path, marker: str = MARKER) -> str:
    """Return the HTML of the page. It depends on the results alone."""
    results = read(folder / marker)
    found = results.text("format")
    require(found == FORMAT, results.where, f"has the format {shortened(found)}; this version reads {FORMAT!r}")
    begun = "belongs to an unfinished anode reproduce; run the same command again to continue"
    require("studies" in results.content or "claims" in results.content, results.where, begun)
    studies = {name: read_study(folder / "figures", name) for name in study_names(results)}
    claims = results.records("claims")
    body = [
        element(
            "header",
            element("span", "anode reproduce", class_="eyebrow"),
            element("h1", results.text("title")),
            element("p", f"{summary(results, claims)}.", class_="lead"),
            *scale_note(results),
        ),
        contents(studies, claims),
        element(
            "main",
            *([claims_section(claims, studies)] if claims else []),
            *failures_section(results),
            *(study_section(folder / "figures", name, study, claims) for name, study in studies.items()),
            environment_section(results),
            timings_section(results),
        ),
        footer(),
        element("dialog", element("button", "Close", type="button", class_="close"), id="_large"),
    ]
    script = own_file("page.js")
    text = Template(own_file("page.html")).substitute(
        policy=policy(script),
        title=escape(results.text("title")),
        style=own_file("page.css"),
        body="\n".join(body),
        script=script,
    )
    return text.encode("utf-8", "replace").decode("utf-8")  # JSON can hold lone surrogates, a UTF-8 file cannot


def policy(script: str) -> str:
    """Return a policy under which the browser loads nothing and runs only the page's own script.

    This is a second line of defence, in case some text is not escaped.
    """
    digest = b64encode(sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def own_file(name: str) -> str:
    """Return the text of a file next to this module."""
    return (resources.files("anode.report") / name).read_text(encoding="utf-8")


def summary(results: Record, claims: Sequence[Record]) -> str:
    """Return the outcome in one line."""
    counts = Counter(verdict_of(claim) for claim in claims)
    others = [f"{counts[verdict]} {verdict}" for verdict in MARKS if verdict != "held" and counts[verdict]]
    outcome = ", ".join([f"{counts['held']} of {counted(len(claims), 'claim')} held", *others])
    repeats = counted(results.number("repeats"), "repeat")
    parts = [outcome if claims else "No claims checked", repeats, f"seed {results.number('seed')}"]
    return "; ".join([*parts, f"total training time {duration(results.number('seconds'))}"])


def scale_note(results: Record) -> list[Markup]:
    """Return a paragraph that says how this scale differs from the paper; nothing if there is no note."""
    if not results.content.get("note"):
        return []
    return [element("p", element("b", f"Scale {results.text('scale')}: "), results.text("note"), class_="scale")]


def contents(studies: dict[str, Record], claims: Sequence[Record]) -> Markup:
    """Return the table of contents."""
    entries = [("_claims", "Claims", "which held and which did not")] if claims else []
    entries += [(name, label(name), study.text("title")) for name, study in studies.items()]
    entries += [("_environment", "Machine", "hardware and versions"), ("_timings", "Time", "how long each run took")]
    links = [element("a", element("b", name), element("span", title), href=f"#{to}") for to, name, title in entries]
    return element("nav", element("ol", *(element("li", link) for link in links)), aria_label="Contents")


def study_section(folder: Path, name: str, study: Record, claims: Sequence[Record]) -> Markup:
    """Return the section of a study: images, caption, numbers and protocol."""
    checks = [
        check for i, claim in enumerate(claims, 1) if claim.text("figure") == name for check in claim_badges(i, claim)
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
    """Return the images of a study with their caption, and links to vector graphics and data."""
    paths = [image_path(folder, image, study.where) for image in study.items("images")]
    images = [embedded(path, f"{label(name)}: {study.text('title')}") for path in paths if path.suffix != ".svg"]
    files = [path.name for path in paths if path.suffix == ".svg"] + [f"{name}.json"]
    links = [element("a", file, href=f"figures/{file}") for file in files]
    large = [element("button", image, type="button", title="Enlarge", class_="enlarge") for image in images]
    caption = element(
        "figcaption",
        element("div", study.text("caption"), class_="caption"),
        element("p", "Files: ", *links, class_="note"),
    )
    return element("figure", *large, caption, class_="wide")


def embedded(path: Path, title: str) -> Markup:
    """Return an image that is embedded in the page."""
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
    """Return the interactive 3-d views of a study."""
    views = [scene(record) for record in study.records("scenes")]
    if not views:
        return Markup()
    hint = (
        "Drag or use the arrow keys to rotate. Zoom with the buttons, with + and -, by pinching, or with Ctrl and the "
        "mouse wheel. Double-click to reset. Large dots mark the ends of trajectories."
    )
    return element("div", element("div", *views, class_="scenes wide"), element("p", hint, class_="note hint"))


def scene(record: Record) -> Markup:
    """Return a view of trajectories in three dimensions, which ``page.js`` draws."""
    title, paths, labels = record.text("title"), record.items("paths"), record.items("labels")
    record.check(bool(paths) and all(map(is_path, paths)), "paths", "lists of points with 3 finite coordinates")
    binary = all(type(value) is int and value in (0, 1) for value in labels)
    record.check(binary and len(labels) == len(paths), "labels", "0 or 1 for each path")
    rounded = [[[round(float(x), 3) + 0.0 for x in point] for point in path] for path in paths]  # -0.0 + 0.0 is 0.0
    says = f"{title}: {counted(len(paths), 'path')} in three dimensions"
    names, axes = record.texts("names", ["-1", "+1"]), record.texts("axes", ["x", "y", "z"])
    keys = [element("span", names[value], class_=f"key key-{value}") for value in sorted(set(labels))]
    zoom = [
        element("button", sign, type="button", data_zoom=factor, aria_label=f"{word}: {title}")
        for sign, factor, word in (("+", "1.25", "Zoom in"), ("\N{MINUS SIGN}", "0.8", "Zoom out"))
    ]
    return element(
        "figure",
        element("canvas", tabindex="0", role="img", aria_label=f"{says}; the arrow keys rotate, + and - zoom"),
        element("div", *zoom, class_="zoom"),
        data_block({"paths": rounded, "labels": labels, "axes": axes}),
        element("figcaption", element("span", title), *keys),
        class_="scene",
    )


def numbers_table(study: Record) -> Markup:
    """Return the table of a study's numbers, if it has any."""
    if study.get("numbers") is None:
        return Markup()
    numbers = study.record("numbers")
    columns, rows = numbers.items("columns"), numbers.items("rows")
    numbers.check(bool(columns), "columns", "at least one column")
    whole = all(isinstance(row, list) and len(row) == len(columns) for row in rows)
    numbers.check(whole, "rows", f"rows of {counted(len(columns), 'value')}")
    shown = [[cell(value, numbers.where) for value in row] for row in (columns, *rows)]
    return table(f"Numbers: {study.text('title')}", shown[0], shown[1:])


def protocol(study: Record) -> Markup:
    """Return the protocol: one row per run, with a dash for settings that a run does not have."""
    runs = study.records("protocol")
    columns = list(dict.fromkeys(key for run in runs for key in run.content))
    if not columns:
        return Markup()
    content = table(f"Protocol: {study.text('title')}", columns, ([run.shown(key) for key in columns] for run in runs))
    return element("details", element("summary", f"Protocol, {counted(len(runs), 'run')}"), content)


def failures_section(results: Record) -> list[Markup]:
    """Return the section about solves that failed in training; nothing if there are none."""
    failures = results.records("failures") if "failures" in results.content else []
    if not failures:
        return []
    columns = {"run": "run", "repeat": "repeat", "first": "first iteration", "times": "times", "reason": "reason"}
    rows = [[failure.shown(name) for name in columns] for failure in failures]
    text = (
        "In toy runs, training of a repeat stops where its solve fails. The repeat is left out of all means "
        "from there on, and counts against every claim that uses it. In image runs, the failed iteration is "
        "skipped and training continues."
    )
    return [
        element(
            "section",
            element("h2", "Failed solves"),
            element("p", text),
            table("Failed solves", list(columns.values()), rows),
        )
    ]


def environment_section(results: Record) -> Markup:
    """Return the section about the machine."""
    environment = results.record("environment")
    facts = [(key, environment.shown(key)) for key in environment.content]
    return element("section", element("h2", "Machine"), definitions(facts, class_="facts"), id="_environment")


def timings_section(results: Record) -> Markup:
    """Return the section about training times."""
    timings = [(timing.text("name"), timing.number("seconds")) for timing in results.records("timings")]
    longest = max((seconds for _, seconds in timings), default=0) or 1
    rows = [
        element("tr", element("th", name, scope="row"), element("td", duration(seconds), bar(seconds / longest)))
        for name, seconds in timings
    ]
    total = element("tr", element("th", "Total", scope="row"), element("td", duration(results.number("seconds"))))
    content = element("table", element("tbody", *rows), element("tfoot", total), class_="timings")
    note = element("p", "Elapsed times, which include pauses and the work of other programs.", class_="note")
    return element("section", element("h2", "Time"), note, content, id="_timings")


def bar(share: float) -> Markup:
    """Return a horizontal bar; it is hidden from screen readers, as the number next to it says the same."""
    return element("span", class_="bar", style=f"width: {share:.1%}", aria_hidden="true")


def footer() -> Markup:
    """Return the footer, which cites the paper."""
    paper = element("a", "Augmented Neural ODEs", href=PAPER_URL)
    return element("footer", "The paper: Dupont, Doucet and Teh, ", paper, ", NeurIPS 2019.")
