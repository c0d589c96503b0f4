"""The claims on the page: statement, verdict, test and measured numbers."""

from __future__ import annotations

from collections.abc import Sequence

from anode.report.markup import Markup, definitions, element, label
from anode.report.reading import DASH, Record, cell

MARKS = {"held": "✓", "not held": "✗", "inconclusive": "?"}  # a verdict must not depend on colour alone
CERTIFIED_MARKS = {**MARKS, "not certified": DASH}

CERTIFIED = (
    "The number of function evaluations depends on the solver's tolerance, so this report judges {} twice. The first "
    "verdict is at the paper's tolerance, 1e-3; the second is at the loosest tolerance certified for all models "
    "compared. A tolerance is certified if solving forward and back returns the states with an error of at most 1 %. "
    "Each repeat has its own certified tolerance."
)


def verdict_of(claim: Record) -> str:
    """Return the verdict on a claim."""
    return _verdict(claim, MARKS)


def certified_of(claim: Record) -> Record | None:
    """Return the verdict at a certified tolerance; ``None`` if there is none, as in results of earlier versions."""
    if "certified" not in claim.content:
        return None
    certified = claim.record("certified")
    _verdict(certified, CERTIFIED_MARKS)
    return certified


def _verdict(judged: Record, marks: dict[str, str]) -> str:
    verdict = judged.text("verdict")
    judged.check(verdict in marks, "verdict", f"one of {', '.join(marks)}")
    return verdict


def badge(verdict: str, text: str, **attributes: str) -> Markup:
    """Return a verdict as a pill; with an ``href`` it is a link."""
    mark = element("span", f"{CERTIFIED_MARKS[verdict]} ", aria_hidden="true")
    kind = "a" if attributes else "span"
    return element(kind, mark, text, class_=f"badge {verdict.replace(' ', '-')}", **attributes)


def claims_section(claims: Sequence[Record], studies: dict[str, Record]) -> Markup:
    """Return the section with all claims and their verdicts."""
    columns = ["#", "Claim", "Verdict", "Numbers", "Test"]
    head = element("tr", *(element("th", column, scope="col", role="columnheader") for column in columns), role="row")
    rows = [row for i, claim in enumerate(claims, 1) for row in claim_rows(i, claim, studies)]
    # The roles are explicit, because on a narrow screen the table is laid out as cards and loses its own.
    content = element(
        "table",
        element("thead", head, role="rowgroup"),
        element("tbody", *rows, role="rowgroup"),
        class_="claims",
        role="table",
    )
    note = certified_note(claims)
    return element("section", element("h2", "Claims"), *note, element("div", content, class_="wide"), id="_claims")


def certified_note(claims: Sequence[Record]) -> list[Markup]:
    """Return a paragraph that says which claims have two verdicts, and which of these differ."""
    verdicts = {
        f"{claim.number('number')}": (verdict_of(claim), certified.text("verdict"))
        for claim in claims
        if (certified := certified_of(claim)) is not None
    }
    if not verdicts:
        return []
    judged = [number for number, (_, second) in verdicts.items() if second in MARKS]
    differ = [number for number in judged if verdicts[number][0] != verdicts[number][1]]
    found = "These results contain no certificates."
    if judged:
        found = f"The two verdicts differ for {listed(differ)}." if differ else "The two verdicts agree."
    return [element("p", f"{CERTIFIED.format(listed(list(verdicts)))} {found}")]


def listed(numbers: Sequence[str]) -> str:
    """Return the claims in words, by number."""
    *first, last = numbers
    return f"claims {', '.join(first)} and {last}" if first else f"claim {last}"


def claim_rows(i: int, claim: Record, studies: dict[str, Record]) -> list[Markup]:
    """Return the rows of a claim: its verdict and, if there is one, its verdict at a certified tolerance."""
    figure = claim.text("figure")
    claim.check(figure in studies, "figure", "one of the studies")
    link = element("p", element("a", label(figure), href=f"#{figure}"), class_="note")
    number = element("th", f"{claim.number('number')}", class_="number", scope="row", role="rowheader")
    statement = element("td", claim.text("statement"), link, class_="statement", role="cell")
    verdict_of(claim)
    rows = [element("tr", number, statement, *judgement(claim), role="row", id=f"_claim-{i}")]
    if (certified := certified_of(claim)) is not None:
        again = element("td", "The same claim at a certified tolerance.", class_="statement", role="cell")
        rows.append(element("tr", number, again, *judgement(certified), role="row"))
    return rows


def judgement(judged: Record) -> list[Markup]:
    """Return the cells of a verdict: the verdict, the numbers and the test."""
    numbers = [(number.text("name"), cell(number.get("value"), number.where)) for number in judged.records("numbers")]
    test = [element("span", judged.text("test")), element("p", "Criterion: ", judged.text("criterion"), class_="note")]
    verdict = judged.text("verdict")
    return [
        element("td", badge(verdict, verdict), class_="verdict", role="cell"),
        element("td", definitions(numbers) if numbers else "", class_="numbers", role="cell"),
        element("td", *test, class_="test", role="cell"),
    ]


def claim_badges(i: int, claim: Record) -> list[Markup]:
    """Return links to a claim, one per verdict."""
    number, verdict, certified = claim.number("number"), verdict_of(claim), certified_of(claim)
    badges = [badge(verdict, f"Claim {number} {verdict}", href=f"#_claim-{i}")]
    if certified is not None:
        second = certified.text("verdict")
        said = second if second == "not certified" else f"{second} at a certified tolerance"
        badges.append(badge(second, f"Claim {number} {said}", href=f"#_claim-{i}"))
    return badges
