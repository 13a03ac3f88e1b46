"""Positions in pictures: what is drawn is where it is said to be, and sight is told from its absence."""

import base64
import functools
import struct
import zlib

import pytest

from sm120.integration.measure import picture as pictures
from sm120.integration.measure.picture import CELL, GRID, SHAPES, draw, picture
from sm120.integration.measure.qualify import of_vision
from sm120.integration.measure.vision import Vision, cell_said, measure_vision, question, score_position


def pixels(png: bytes) -> list[list[tuple[int, int, int]]]:
    """Decode 8-bit RGB without filters, checking every checksum."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, data, size = 8, b"", None
    while at < len(png):
        (length,), name = struct.unpack(">I", png[at : at + 4]), png[at + 4 : at + 8]
        body = png[at + 8 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length : at + 12 + length])[0] == zlib.crc32(name + body)
        if name == b"IHDR":
            size = struct.unpack(">II", body[:8])
            assert body[8:] == bytes([8, 2, 0, 0, 0])
        data += body if name == b"IDAT" else b""
        at += 12 + length
    width, height = size
    raw = zlib.decompress(data)
    assert len(raw) == height * (1 + 3 * width)
    rows = [raw[y * (1 + 3 * width) : (y + 1) * (1 + 3 * width)] for y in range(height)]
    assert all(row[0] == 0 for row in rows)
    return [[tuple(row[1 + 3 * x : 4 + 3 * x]) for x in range(width)] for row in rows]


@functools.cache
def look(png: bytes) -> dict[str, tuple[tuple[int, int], int]]:
    """What a picture shows: for each shape the cell of all its pixels, and how many they are."""
    names, found = {colour: shape for shape, colour in SHAPES.items()}, {}
    for y, row in enumerate(pixels(png)):
        for x, colour in enumerate(row):
            if colour in names:
                found.setdefault(names[colour], []).append((y // CELL + 1, x // CELL + 1))
    assert all(len(set(cells)) == 1 for cells in found.values())
    return {shape: (cells[0], len(cells)) for shape, cells in found.items()}


def check_picture(png: bytes, cells: dict[str, tuple[int, int]]) -> None:
    seen = look(png)
    assert {shape: cell for shape, (cell, _) in seen.items()} == cells
    # The forms, by their areas: disc πr², square (1.6 r)², triangle 1.8 r · 2 r ÷ 2, cross two bars less their middle.
    half = CELL / 3
    for shape, share in (("red disc", 3.14), ("blue square", 2.56), ("green triangle", 1.8), ("black cross", 1.44)):
        assert seen[shape][1] == pytest.approx(share * half**2, rel=0.06), shape


def test_every_shape_is_where_it_is_said_to_be():
    for seed in "ab":
        shown = picture(seed)
        assert len(set(shown.cells.values())) == len(SHAPES)
        check_picture(shown.png, shown.cells)
    assert picture("a").png == picture("a").png != picture("b").png


def test_a_wrong_picture_is_caught(monkeypatch):
    cells = {"red disc": (1, 3), "blue square": (2, 1), "green triangle": (3, 3), "black cross": (2, 2)}
    check_picture(draw(cells), cells)
    swapped = {shape: (column, row) for shape, (row, column) in cells.items()}
    upside_down = {shape: (GRID + 1 - row, column) for shape, (row, column) in cells.items()}
    for wrong in (swapped, upside_down, {**cells, "red disc": (2, 2)}):
        with pytest.raises(AssertionError):
            check_picture(draw(wrong), cells)
    monkeypatch.setattr(pictures, "_covers", lambda shape, u, v: u * u + v * v <= 1)
    with pytest.raises(AssertionError):
        check_picture(draw(cells), cells)


def test_bad_pictures():
    with pytest.raises(ValueError, match="cells has 'pink disc'"):
        draw({"pink disc": (1, 1)})
    for cell in ((0, 1), (1, 4)):
        with pytest.raises(ValueError, match=f"puts red disc at {cell[0]},{cell[1]}, needs 1 to 3"):
            draw({"red disc": cell})


def seeing(wording="{0},{1}", **changes):
    """Answers by looking at the pixels it was sent."""

    def talk(body):
        content = body["messages"][0]["content"]
        if isinstance(content, str):
            return {"text": "2,2", "prompt_tokens": 50, "tokens": 1, "finish": "length"}
        url = content[0]["image_url"]["url"]
        assert url.startswith("data:image/png;base64,")
        seen = look(base64.b64decode(url.split(",")[1], validate=True))
        (shape,) = [shape for shape in SHAPES if shape in content[1]["text"]]
        return {"text": wording.format(*seen[shape][0]), "prompt_tokens": 194, "tokens": 3, **changes}

    return talk


def values(vision):
    return [one.value for one in of_vision([vision])]


def test_exact_and_semantic_stay_apart(endpoint, behaviour):
    behaviour.talk = seeing()
    assert values(measure_vision(endpoint, seed="a")) == [1, 1]
    behaviour.talk = seeing("The shape is in row {0}, column {1}.")
    assert values(measure_vision(endpoint, seed="a")) == [0, 1]
    behaviour.talk = seeing("9,9")
    assert values(measure_vision(endpoint, seed="a")) == [0, 0]


def test_no_vision_is_not_supported_and_not_a_failure(endpoint, behaviour):
    see = seeing()

    def text_only(body):
        return see(body) if isinstance(body["messages"][0]["content"], str) else (400, "Model only supports text input")

    behaviour.talk = text_only
    for one in of_vision([measure_vision(endpoint, seed="a")]):
        assert (
            one.value is None and one.outcome == one.shown() == "not supported" and "only supports text" in one.refused
        )


@pytest.mark.parametrize("says", [False, True, None, "no"])
def test_a_server_that_says_it_takes_no_images_is_not_asked(endpoint, behaviour, says):
    behaviour.talk = asked = []
    behaviour.talk = lambda body: asked.append(body) or (503, "busy")
    behaviour.says["/model_info"] = {"has_image_understanding": says}
    found = of_vision([measure_vision(endpoint, seed="v")])
    if says is False:
        assert {one.outcome for one in found} == {"not supported"} and not asked
        assert all(one.refused.startswith("not applicable: the model takes no images") for one in found)
        assert {one.shown() for one in found} == {"not supported"}
    else:  # anything but a plain no is no answer
        assert asked and {one.outcome for one in found} == {None}


@pytest.mark.parametrize("added", [0, 3])
def test_a_dropped_picture_is_no_vision_however_good_the_guess(endpoint, behaviour, added):
    behaviour.talk = seeing(prompt_tokens=50 + added)
    for one in of_vision([measure_vision(endpoint, seed="a")]):
        assert one.value is None and one.outcome == "not supported" and f"added {added} tokens" in one.refused


def test_faults_are_not_lack_of_vision(endpoint, behaviour):
    see = seeing()
    assert "no chat template" in measure_vision(endpoint, seed="a").reason
    behaviour.talk = lambda body: see(body) if isinstance(body["messages"][0]["content"], str) else (503, "busy")
    found = [measure_vision(endpoint, seed="a")]
    behaviour.talk = seeing(prompt_tokens=None)
    found.append(measure_vision(endpoint, seed="a"))
    behaviour.talk = seeing(finish="length")
    found.append(measure_vision(endpoint, seed="a"))
    asked = []

    def tires(body):
        asked.append(body)
        return see(body) if len(asked) < 3 else (400, "too many pictures")

    behaviour.talk = tires
    found.append(measure_vision(endpoint, seed="a"))
    for one, says in zip(found, ("busy", "does not report prompt tokens", "cut off", "too many"), strict=True):
        assert one.outcome is None and says in one.reason
        assert [done.shown() for done in of_vision([one])] == ["not measured"] * 2


def test_one_bad_picture_takes_the_score_away():
    good = Vision([score_position("red disc", "1,1", (1, 1))])
    assert values(good) == [1, 1] and of_vision([good, Vision([], "gone")])[0].refused == "gone"
    assert of_vision([])[0].refused == "nothing asked"


SAID = [
    ("2,3", True, True),
    (" 2,3\n", True, True),
    ("<think>3,2?</think>2,3", True, True),
    ("2, 3", False, True),
    ("(2,3)", False, True),
    ("2,3.", False, True),
    ("Row 2, Column 3", False, True),
    ("column 3, row 2", False, True),
    ("second row, third column", False, True),
    ("Second row third column", False, True),
    ("row: 2 column: 3", False, True),
    ("middle right", False, True),
    ("The right column, middle row", False, True),
    ("3,2", False, False),
    ("row 3, column 2", False, False),
    ("third row, second column", False, False),
    ("top right", False, False),
    ("right", False, False),
    ("2,3 or 3,2", False, False),
    ("not 2,3", False, False),
    ("row 2, third column from the right", False, False),
    ("row 2 or row 1, column 3", False, False),
    ("top or bottom, right", False, False),
    ("<think>2,3", False, False),
    ("23", False, False),
    ("", False, False),
]


def check_scorer(scorer) -> None:
    for said, exact, semantic in SAID:
        found = scorer("red disc", said, (2, 3))
        assert (found.exact, found.semantic) == (exact, semantic), said


def test_scorer():
    check_scorer(score_position)
    for said, cell in (("top left", (1, 1)), ("upper middle", (1, 2)), ("lower left", (3, 1)), ("centre", (2, 2)),
                       ("first row, 2nd column", (1, 2)), ("bottom center", (3, 2))):  # fmt: skip
        assert cell_said(said) == cell, said


@pytest.mark.parametrize(
    "wrong",
    [
        lambda shape, said, cell: score_position(shape, said, cell[::-1]),
        lambda shape, said, cell: score_position(shape, said.replace(" ", "").strip("()."), cell),
        lambda shape, said, cell: score_position(shape, said.replace("think", ""), cell),
        lambda shape, said, cell: score_position(shape, said[:3], cell),
        lambda shape, said, cell: score_position(shape, "2,3" if "2" in said and "3" in said else said, cell),
    ],
    ids=["transposed", "semantic as exact", "reasoning counts", "beginning", "numbers in any order"],
)
def test_a_wrong_scorer_is_caught(wrong):
    with pytest.raises(AssertionError):
        check_scorer(wrong)


def test_a_question_names_one_shape_and_no_cell():
    for shape in SHAPES:
        assert [other for other in SHAPES if other in question(shape)] == [shape]
