import base64
import json
import re
import shutil
import subprocess
from hashlib import sha256
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imsave
from PIL import Image

from anode.files import DamagedFileError
from anode.report import write_report
from anode.report.markup import data_block, element, label
from anode.storage import write_json

VOID = {"meta", "img", "br", "hr", "input", "link"}
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=\"alert('2')\">&amp;"


class Page(HTMLParser):
    """The elements and texts of a page; fails where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        if inside == "script":
            self.scripts.append(data)
        elif inside != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def values(self, attribute: str) -> list[str]:
        return [attributes[attribute] for _, attributes in self.elements if attribute in attributes]


def results() -> dict:
    claim = {"test": "sign test over 20 repeats, p = 1e-6", "criterion": "15 of 20 repeats or more"}
    return {
        "format": "anode results 1",
        "title": "The toy experiments",
        "seed": 0,
        "repeats": 20,
        "studies": ["fig07", "fig01"],
        "claims": [
            claim
            | {
                "number": 7,
                "statement": "ANODE reaches a lower loss.",
                "figure": "fig07",
                "verdict": "held",
                "numbers": [{"name": "NODE, final loss", "value": "0.031 ± 0.010"}, {"name": "repeats", "value": 20}],
            },
            claim | {"number": 2, "statement": "Lines cross.", "figure": "fig01", "verdict": "not held", "numbers": []},
            claim | {"number": 1, "statement": "No.", "figure": "fig01", "verdict": "inconclusive", "numbers": []},
        ],
        "environment": {"anode": "0.1.0", "processors": 2, "revision": None, "date": "2026-11-16"},
        "timings": [{"name": "g, d = 2: NODE", "seconds": 61.2}, {"name": "figures", "seconds": 15.3}],
        "seconds": 400.1,
    }


def studies() -> dict[str, dict]:
    path = [[0.12345, -0.00001, 1], [1.5, 2, 3]]
    return {
        "fig07": {
            "id": "fig07",
            "title": "Augmentation helps",
            "caption": "Loss during training.",
            "images": ["fig07.png", "fig07.svg", "fig07-anode.gif"],
            "protocol": [{"run": "g-2d-node", "epochs": 50}, {"run": "g-2d-anode", "epochs": 40, "p": 5, "time": True}],
            "numbers": {"columns": ["model", "final loss"], "rows": [["NODE", "0.03 ± 0.01"], ["ANODE", "0.002"]]},
            "scenes": [{"title": "ANODE, d = 2", "paths": [path, path[:1]], "labels": [0, 1]}],
        },
        "fig01": {
            "id": "fig01",
            "title": "Flows",
            "caption": "Points on their way.",
            "images": ["fig01.png"],
            "protocol": [],
            "numbers": None,
            "scenes": [],
        },
    }


def store(folder: Path, results: dict, studies: dict[str, dict]) -> Path:
    figures = folder / "figures"
    write_json(folder / "anode-results.json", results)
    for name, study in studies.items():
        write_json(figures / f"{name}.json", study)
    for name in ("fig01", "fig07"):
        imsave(figures / f"{name}.png", np.linspace(0, 1, 12).reshape(3, 4))
    frames = [Image.new("P", (5, 2), color) for color in (0, 255)]
    frames[0].save(figures / "fig07-anode.gif", save_all=True, append_images=frames[1:])
    (figures / "fig07.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    return folder


@pytest.fixture
def folder(tmp_path):
    return store(tmp_path, results(), studies())


def report(folder: Path) -> str:
    return write_report(folder).read_text(encoding="utf-8")


# The page


def test_the_page_lies_in_the_folder(folder):
    assert write_report(folder) == folder / "report.html"
    assert {path.name for path in folder.iterdir()} == {"anode-results.json", "figures", "report.html"}


def test_the_summary_counts_the_verdicts(folder):
    page = Page(report(folder))
    assert (
        "1 of 3 claims held, 1 not held, 1 inconclusive; 20 repeats; seed 0; total training time 6 min 40 s."
        in page.text
    )


@pytest.mark.parametrize(
    ("verdicts", "says"),
    [
        ([], "No claims checked; 1 repeat; seed 0"),
        (["held"], "1 of 1 claim held; 1 repeat"),
        (["not held", "not held"], "0 of 2 claims held, 2 not held; 1 repeat"),
    ],
)
def test_the_summary_speaks_of_one_and_of_many(tmp_path, verdicts, says):
    claims = [results()["claims"][0] | {"verdict": verdict} for verdict in verdicts]
    page = Page(report(store(tmp_path, results() | {"claims": claims, "repeats": 1}, studies())))
    assert says in page.text
    assert ("which held and which did not" in page.text) is bool(verdicts)
    assert ("_claims" in [attributes["id"] for attributes in page.all("section")]) is bool(verdicts)


def test_every_claim_is_there_with_its_verdict_numbers_and_test(folder):
    page = Page(report(folder))
    for claim in results()["claims"]:
        assert claim["statement"] in page.text
        assert claim["test"] in page.text
        assert claim["criterion"] in page.text
        assert f"Claim {claim['number']} {claim['verdict']}" in page.text  # at its figure
    assert "NODE, final loss0.031 ± 0.010repeats20" in page.text
    badges = [attributes["class"] for attributes in page.all("span") if "badge" in attributes.get("class", "")]
    assert badges == ["badge held", "badge not-held", "badge inconclusive"]


CERTIFIED = {"test": "true in 1 of 20 repeats", "criterion": "at its own tolerance", "numbers": []}


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (["held", "not held"], "The two verdicts agree."),
        (["not held", "not held"], "The two verdicts differ for claim 7."),
        (["not held", "held"], "The two verdicts differ for claims 7 and 2."),
        (["not certified", "held"], "The two verdicts differ for claim 2."),
        (["not certified", "not certified"], "These results contain no certificates."),
    ],
)
def test_claims_judged_at_a_certified_tolerance_have_two_verdicts(tmp_path, second, says):
    content = results()
    for claim, verdict in zip(content["claims"], second, strict=False):
        claim["certified"] = CERTIFIED | {"verdict": verdict}
    page = Page(report(store(tmp_path, content, studies())))
    assert "this report judges claims 7 and 2 twice" in page.text
    assert says in page.text
    assert page.text.count("The same claim at a certified tolerance.") == 2
    at_figure = second[0] if second[0] == "not certified" else f"{second[0]} at a certified tolerance"
    assert f"Claim 7 {at_figure}" in page.text
    assert "2 of 3" not in page.text  # a second verdict is not a claim of its own


def test_every_study_is_there_in_the_order_of_the_results(folder):
    page = Page(report(folder))
    assert [attributes["id"] for attributes in page.all("section")] == [
        "_claims",
        "fig07",
        "fig01",
        "_environment",
        "_timings",
    ]
    for study in studies().values():
        assert study["title"] in page.text
        assert study["caption"] in page.text


def test_images_are_part_of_the_page(folder):
    images = Page(report(folder)).all("img")
    for image, name, size in zip(
        images, ("fig07.png", "fig07-anode.gif", "fig01.png"), ("4x3", "5x2", "4x3"), strict=True
    ):
        kind, content = image["src"].split(";base64,")
        assert kind == f"data:image/{name[-3:]}"
        assert base64.b64decode(content) == (folder / "figures" / name).read_bytes()
        assert f"{image['width']}x{image['height']}" == size
        assert image["alt"].startswith(f"{label(name[:5])}: ")
    assert len({image["alt"] for image in images}) == 3


def test_vector_graphics_and_data_are_linked(folder):
    links = Page(report(folder)).values("href")
    local = [link for link in links if not link.startswith(("#", "https:"))]
    assert local == ["figures/fig07.svg", "figures/fig07.json", "figures/fig01.json"]
    assert all((folder / link).is_file() for link in local)


def test_nothing_is_loaded_from_elsewhere(folder):
    text = report(folder)
    page = Page(text)
    assert page.all("link") == []
    assert all(source.startswith("data:image/") for source in page.values("src"))
    assert {attributes["href"] for attributes in page.all("a") if ":" in attributes["href"]} == {
        "https://arxiv.org/abs/1904.01681"
    }
    assert text.count("http://") + text.count("https://") == 1
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest", text)


def test_anchors_are_unique_and_every_link_has_its_target(folder):
    page = Page(report(folder))
    anchors = page.values("id")
    assert len(set(anchors)) == len(anchors)
    targets = {link[1:] for link in page.values("href") if link.startswith("#")}
    assert targets <= set(anchors)
    assert {"_claims", "_environment", "_timings", "fig01", "fig07", "_claim-1", "_claim-3"} <= targets


def test_a_claim_may_have_several_rows(tmp_path):
    twice = results()["claims"][:1] * 2
    anchors = Page(report(store(tmp_path, results() | {"claims": twice}, studies()))).values("id")
    assert len(set(anchors)) == len(anchors)


def test_the_numbers_and_the_protocol_are_tables(folder):
    page = Page(report(folder))
    assert "modelfinal lossNODE0.03 ± 0.01ANODE0.002" in page.text
    assert "Protocol, 2 runs" in page.text
    assert "runepochsptimeg-2d-node50\N{EN DASH}\N{EN DASH}g-2d-anode405yes" in page.text
    assert len(page.all("details")) == 1  # the study without a protocol has none to unfold


def test_environment_and_timings_are_told(folder):
    page = Page(report(folder))
    assert "processors2revision\N{EN DASH}date2026-11-16" in page.text
    assert "g, d = 2: NODE1 min 1 sfigures15 sTotal6 min 40 s" in page.text
    assert [attributes["style"] for attributes in page.all("span") if attributes.get("class") == "bar"] == [
        "width: 100.0%",
        "width: 25.0%",
    ]


def test_no_timings_make_no_bars(tmp_path):
    page = Page(report(store(tmp_path, results() | {"timings": [], "seconds": 0}, studies())))
    assert "Total0 s" in page.text


def test_scenes_carry_their_rounded_paths(folder):
    page = Page(report(folder))
    (canvas,) = page.all("canvas")
    assert canvas["tabindex"] == "0"
    assert canvas["role"] == "img"
    assert canvas["aria-label"].startswith("ANODE, d = 2: 2 paths")
    assert json.loads(page.scripts[0]) == {
        "paths": [[[0.123, 0.0, 1.0], [1.5, 2.0, 3.0]], [[0.123, 0.0, 1.0]]],
        "labels": [0, 1],
        "axes": ["x", "y", "z"],
    }
    assert "-0.0" not in page.scripts[0]


def test_a_scene_may_name_its_axes_and_classes(folder):
    path = folder / "figures" / "fig07.json"
    content = json.loads(path.read_text())
    content["scenes"][0] |= {"axes": ["x1", "x2", "added"], "names": ["disc", "ring"]}
    write_json(path, content)
    page = Page(report(folder))
    assert json.loads(page.scripts[0])["axes"] == ["x1", "x2", "added"]
    assert "disc" in page.words
    assert "-1" not in page.words
    content["scenes"][0]["axes"] = ["x1", 2, "added"]
    write_json(path, content)
    with pytest.raises(DamagedFileError, match="'axes' takes 3 texts"):
        report(folder)


def test_the_page_is_the_same_for_the_same_results(folder):
    first = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == first


def test_only_the_own_script_may_run(folder):
    page = Page(report(folder))
    (policy,) = [meta["content"] for meta in page.all("meta") if "http-equiv" in meta]
    assert policy.startswith("default-src 'none'; img-src data:;")
    script = page.scripts[-1]
    digest = base64.b64encode(sha256(script.encode()).digest()).decode()
    assert policy.endswith(f"script-src 'sha256-{digest}'")


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_script_is_javascript(folder, tmp_path):
    script = tmp_path / "script.js"
    script.write_text(Page(report(folder)).scripts[-1], encoding="utf-8")
    subprocess.run(["node", "--check", script], check=True, timeout=60)


def test_the_files_beside_the_module_cannot_end_their_elements():
    for name in ("page.css", "page.js"):
        assert "</" not in (resources.files("anode.report") / name).read_text(encoding="utf-8")


# Escapes


KEYS = {*results(), *results()["claims"][0], *studies()["fig07"], "name", "value", "seconds", "columns", "rows"} | {
    "paths",
    "labels",
}


def hostile(value):
    """The same content with every text that is free replaced."""
    fixed = ("format", "id", "figure", "verdict", "images", "studies")
    if isinstance(value, dict):
        return {
            key if key in KEYS else HOSTILE + key: item if key in fixed else hostile(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [hostile(item) for item in value]
    return HOSTILE if isinstance(value, str) else value


def test_no_text_becomes_markup(tmp_path, folder):
    tame = Page(report(folder))
    text = report(store(tmp_path / "hostile", hostile(results()), {k: hostile(v) for k, v in studies().items()}))
    page = Page(text)
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in tame.elements]
    assert "<script>alert" not in text
    assert HOSTILE in page.text
    assert not any(key.startswith("on") for _, attributes in page.elements for key in attributes)


def test_a_script_in_a_caption_is_shown_and_not_run(tmp_path):
    changed = studies()
    changed["fig01"]["caption"] = "<script>alert(1)</script>"
    text = report(store(tmp_path, results(), changed))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<script>alert(1)" not in text


def test_half_a_character_is_replaced(tmp_path):
    assert "a ? title" in report(store(tmp_path, results() | {"title": "a \ud83d title"}, studies()))


def test_data_cannot_end_its_block():
    text = data_block(["</script>", "<!--"])
    assert text.count("<") == 2
    assert json.loads(re.sub(r"^<script[^>]*>|</script>$", "", text)) == ["</script>", "<!--"]


def test_elements_escape_texts_and_attributes_but_not_elements():
    inner = element("b", "1 < 2")
    assert element("p", inner, ' & "3"', class_='"', aria_label="é") == (
        '<p class="&quot;" aria-label="é"><b>1 &lt; 2</b> &amp; &quot;3&quot;</p>'
    )


# Damaged results


def refuses(folder: Path, says: str) -> None:
    with pytest.raises(DamagedFileError, match=says) as caught:
        write_report(folder)
    assert "\n" not in str(caught.value)
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize("key", results())
def test_results_without_a_key_are_refused(tmp_path, key):
    content = results()
    del content[key]
    refuses(store(tmp_path, content, studies()), f"anode-results.json: has no '{key}'")


@pytest.mark.parametrize("key", results()["claims"][0])
def test_a_claim_without_a_key_is_refused(tmp_path, key):
    content = results()
    del content["claims"][1][key]
    refuses(store(tmp_path, content, studies()), rf"anode-results.json, claims\[1\]: has no '{key}'")


@pytest.mark.parametrize("key", studies()["fig07"])
def test_a_study_without_a_key_is_refused(tmp_path, key):
    content = studies()
    del content["fig07"][key]
    refuses(store(tmp_path, results(), content), f"fig07.json: has no '{key}'")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "anode results 2"}, "has the format 'anode results 2'; this version reads 'anode results 1'"),
        ({"title": 3}, "'title' takes a text, got 3"),
        ({"seconds": -1}, "'seconds' takes a number from 0, got -1"),
        ({"repeats": True}, "'repeats' takes a number from 0, got True"),
        ({"seed": 10**400}, "'seed' takes a number from 0"),
        ({"claims": {}}, "'claims' takes a list"),
        ({"claims": [3]}, r"claims\[0\]: takes an object, got 3"),
        ({"claims": [results()["claims"][0] | {"verdict": "maybe"}]}, "'verdict' takes one of held, not held, inconcl"),
        ({"claims": [results()["claims"][0] | {"verdict": "not certified"}]}, "'verdict' takes one of held, not held,"),
        (
            {"claims": [results()["claims"][0] | {"certified": {"verdict": "maybe"}}]},
            "inconclusive, not certified",
        ),
        ({"claims": [results()["claims"][0] | {"certified": 3}]}, r"claims\[0\], certified: takes an object, got 3"),
        ({"claims": [results()["claims"][0] | {"figure": "fig99"}]}, "'figure' takes one of the studies, got 'fig99'"),
        ({"studies": ["fig07", "fig07"]}, "'studies' takes plain names without duplicates"),
        ({"studies": ["../fig07"]}, "'studies' takes plain names"),
        ({"studies": ["_claims"]}, "'studies' takes plain names"),
        ({"studies": ["fig07", "fig01", "fig02"]}, "fig02.json: is missing"),
        ({"environment": {"torch": {"cuda": 12}}}, "environment, torch: takes a text or a number"),
    ],
)
def test_wrong_results_are_refused(tmp_path, change, says):
    refuses(store(tmp_path, results() | change, studies()), says)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": "fig08"}, "fig07.json: is about 'fig08', not 'fig07'"),
        ({"numbers": {"columns": ["a", "b"], "rows": [["1"]]}}, "numbers: 'rows' takes rows of 2 values"),
        ({"numbers": {"columns": [], "rows": []}}, "numbers: 'columns' takes at least one column"),
        ({"scenes": [{"title": "", "paths": [[[1, 2]]], "labels": [0]}]}, "'paths' takes lists of points with 3"),
        ({"scenes": [{"title": "", "paths": [], "labels": []}]}, "'paths' takes lists of points with 3"),
        ({"scenes": [{"title": "", "paths": [[[1, 2, 3]]], "labels": []}]}, "'labels' takes 0 or 1 for each path"),
        ({"scenes": [{"title": "", "paths": [[[1, 2, 3]]], "labels": [2]}]}, "'labels' takes 0 or 1 for each path"),
    ],
)
def test_a_wrong_study_is_refused(tmp_path, change, says):
    content = studies()
    content["fig07"] |= change
    refuses(store(tmp_path, results(), content), says)


def test_coordinates_that_are_not_finite_are_refused(folder):
    path = folder / "figures" / "fig07.json"
    path.write_text(path.read_text().replace("1.5", "NaN"))
    refuses(folder, r"fig07\.json: is not a JSON file \(it holds NaN\)")


@pytest.mark.parametrize(
    "name", ["../x.png", "/etc/x.png", "a/../../x.png", "..", "", "x\n.png", "a\\b.png", ".png", 3, None]
)
def test_an_image_cannot_leave_the_folder(tmp_path, name):
    content = studies()
    content["fig01"]["images"] = [name]
    imsave(tmp_path / "x.png", np.zeros((2, 2)))
    refuses(store(tmp_path, results(), content), "fig01.json: 'images' takes plain file names, got ")


@pytest.mark.parametrize("name", ["fig07.png", "fig07.svg", "fig07-anode.gif"])
def test_a_missing_image_is_named(folder, name):
    (folder / "figures" / name).unlink()
    refuses(folder, f"fig07.json: names the image '{name}', which is missing")


def test_an_image_of_another_kind_is_refused(tmp_path):
    content = studies()
    content["fig01"]["images"] = ["fig01.json"]
    refuses(store(tmp_path, results(), content), "'images' takes .png, .gif and .svg files, got 'fig01.json'")


@pytest.mark.parametrize("content", [b"", b"not an image, but long enough to be one", b"\x89PNG\r\n\x1a\n"])
def test_a_damaged_image_is_refused(folder, content):
    (folder / "figures" / "fig01.png").write_bytes(content)
    refuses(folder, "fig01.png: is not a PNG image")


@pytest.mark.parametrize("content", [b"{", b"\xff", b"", b"[]"])
def test_a_damaged_file_is_refused(folder, content):
    (folder / "anode-results.json").write_bytes(content)
    refuses(folder, "anode-results.json: (is not a JSON file|takes an object)")


def test_a_folder_without_results_is_refused(tmp_path):
    refuses(tmp_path, "anode-results.json: is missing; run anode reproduce again")


# Words


def test_failed_repeats_are_listed(tmp_path):
    failure = {
        "run": "g-d1-node",
        "repeat": 3,
        "first": 120,
        "times": 7,
        "reason": "MAX_STEPS: the step budget was used up",
    }
    without = report(store(tmp_path / "a", results(), studies()))
    text = report(store(tmp_path / "b", results() | {"failures": [failure]}, studies()))
    assert "Failed solves" not in without
    assert all(part in text for part in ("Failed solves", "g-d1-node", "120", "MAX_STEPS"))
