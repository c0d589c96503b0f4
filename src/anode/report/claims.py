"""The claims on the page: what they say, how they were judged, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from anode.report.markup import Markup, definitions, element, label
from anode.report.reading import DASH, Record, cell

MARKS = {"held": "✓", "not held": "✗", "inconclusive": "?"}  # a verdict is not told by colour alone
CERTIFIED_MARKS = {**MARKS, "not certified": DASH}

CERTIFIED = (
    "What a solver needs depends on its tolerance, so {} are judged twice: at the paper's tolerance, 1e-3, and at the "
    "loosest tolerance that is certified for all models compared. A tolerance is certified if solving forward and back "
    "returns the states with an error of at most 1 %. Each repeat has its own."
)


def verdict_of(claim: Record) -> str:
    """What came out."""
    return _verdict(claim, MARKS)


def certified_of(claim: Record) -> Record | None:
    """How a claim was judged at a certified tolerance; ``None`` if it was not, as in results of earlier versions."""
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
    """A verdict as a pill, which is a link where it has an address."""
    mark = element("span", f"{CERTIFIED_MARKS[verdict]} ", aria_hidden="true")
    kind = "a" if attributes else "span"
    return element(kind, mark, text, class_=f"badge {verdict.replace(' ', '-')}", **attributes)


def claims_section(claims: Sequence[Record], studies: dict[str, Record]) -> Markup:
    """Every claim with its verdict."""
    columns = ["#", "Claim", "Verdict", "Numbers", "Test"]
    head = element("tr", *(element("th", column, scope="col", role="columnheader") for column in columns), role="row")
    rows = [row for i, claim in enumerate(claims, 1) for row in claim_rows(i, claim, studies)]
    # The roles are said aloud, because a table that is laid out as cards on a narrow screen loses them.
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
    """Which claims have a second verdict, and for which of them it is another one."""
    verdicts = {
        f"{claim.number('number')}": (verdict_of(claim), certified.text("verdict"))
        for claim in claims
        if (certified := certified_of(claim)) is not None
    }
    if not verdicts:
        return []
    judged = [number for number, (_, second) in verdicts.items() if second in MARKS]
    differ = [number for number in judged if verdicts[number][0] != verdicts[number][1]]
    found = "The results hold no certificates."
    if judged:
        found = f"The two verdicts differ for {listed(differ)}." if differ else "The two verdicts agree."
    return [element("p", f"{CERTIFIED.format(listed(list(verdicts)))} {found}")]


def listed(numbers: Sequence[str]) -> str:
    """Claims by their numbers."""
    *first, last = numbers
    return f"claims {', '.join(first)} and {last}" if first else f"claim {last}"


def claim_rows(i: int, claim: Record, studies: dict[str, Record]) -> list[Markup]:
    """A claim in the table of claims, and in a row below it how it was judged at a certified tolerance."""
    figure = claim.text("figure")
    claim.check(figure in studies, "figure", "one of the studies")
    link = element("p", element("a", label(figure), href=f"#{figure}"), class_="note")
    number = element("th", f"{claim.number('number')}", class_="number", scope="row", role="rowheader")
    statement = element("td", claim.text("statement"), link, class_="statement", role="cell")
    verdict_of(claim)
    rows = [element("tr", number, statement, *judgement(claim), role="row", id=f"_claim-{i}")]
    if (certified := certified_of(claim)) is not None:
        again = element("td", "The same at a certified tolerance.", class_="statement", role="cell")
        rows.append(element("tr", number, again, *judgement(certified), role="row"))
    return rows


def judgement(judged: Record) -> list[Markup]:
    """The cells about a verdict: what it is, the numbers, and the test."""
    numbers = [(number.text("name"), cell(number.get("value"), number.where)) for number in judged.records("numbers")]
    test = [element("span", judged.text("test")), element("p", "Criterion: ", judged.text("criterion"), class_="note")]
    verdict = judged.text("verdict")
    return [
        element("td", badge(verdict, verdict), class_="verdict", role="cell"),
        element("td", definitions(numbers) if numbers else "", class_="numbers", role="cell"),
        element("td", *test, class_="test", role="cell"),
    ]


def claim_badges(i: int, claim: Record) -> list[Markup]:
    """Links to a claim that say its verdict, and that at a certified tolerance."""
    number, verdict, certified = claim.number("number"), verdict_of(claim), certified_of(claim)
    badges = [badge(verdict, f"Claim {number} {verdict}", href=f"#_claim-{i}")]
    if certified is not None:
        second = certified.text("verdict")
        said = second if second == "not certified" else f"{second} at a certified tolerance"
        badges.append(badge(second, f"Claim {number} {said}", href=f"#_claim-{i}"))
    return badges
