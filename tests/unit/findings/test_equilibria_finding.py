"""What is said of equilibria, and their page: true to the fields, whole, without script, hostile text stays text."""

import json
import math

import numpy as np
import pytest

from kit.equilibria_findings import finding, rest, share, system, two_tokens
from kit.html_reader import Reader
from rankscope.errors import FileError
from rankscope.findings.collapse import Apart
from rankscope.findings.equilibria import EquilibriaFinding
from rankscope.findings.equilibria.finding import MEANT
from rankscope.findings.equilibria.values import Basins, ComponentValue, Pivot, RankProof

HOSTILE = "<script>alert(1)</script>\x1b[2J"


def basins(*shares, starts=None):
    return Basins(
        starts=sum(one.count for one in shares) if starts is None else starts, steps=2000, shares=shares
    )


def test_the_conclusion_of_a_rank_that_was_asked_for():
    found = two_tokens()
    assert found.words[0] == (
        "There is an equilibrium of rank 2, proven: one step moves no entry of its tokens by more than 1e-15."
    )
    assert found.words[2:4] == (
        "4 of the 40 random starts end there.",
        "Of 40 random starts, 35 end with all tokens equal, 4 end at equilibria with tokens that differ and 1 still "
        "moves after 1,000 steps.",
    )
    assert found.title == "An equilibrium of rank 2; some starts collapse"
    none = two_tokens(basins=basins(share(40, 0, rank=1)))
    assert "None of the 40 random starts ends there." in none.words
    assert none.tone == "bad"


@pytest.mark.parametrize(
    ("shares", "words", "tone"),
    [
        ([share(9, ending="consensus", rank=1)],
         "All 9 random starts end with all tokens equal: they collapse.", "bad"),
        ([share(1, 0, rank=1)], "The one random start ends with all tokens equal: it collapses.", "bad"),
        ([share(9, 1, rank=2)], "All 9 random starts end at equilibria with tokens that differ.", "good"),
        ([share(9, ending="shape", rank=2)], "All 9 random starts end with their shape at rest.", "good"),
        ([share(2, 1, rank=2), share(1, ending="cycle", rank=2)],
         "Of 3 random starts, 2 end at equilibria with tokens that differ and 1 ends in a cycle.", "good"),
        ([share(2, ending="plateau", rank=2)], "All 2 random starts are on a plateau.", "unknown"),
        ([share(3, ending="unresolved")], "All 3 random starts still move after 2,000 steps.", "unknown"),
        ([share(2, ending="range")], "All 2 random starts leave the range of numbers.", "unknown"),
        ([share(1, ending="equilibrium", rank=2)], "The one random start is at rest.", "good"),
        ([share(1, 0, rank=1), share(1200, ending="unresolved")],
         "Of 1,201 random starts, 1 ends with all tokens equal and 1,200 still move after 2,000 steps.", "look"),
    ],
)  # fmt: skip
def test_the_conclusion_of_a_search(shares, words, tone):
    found = two_tokens(rank=None, place=0, basins=basins(*shares))
    assert (found.words[0], found.tone) == (words, tone)
    assert words in str(found)


def test_zero_tokens_are_not_called_collapsed():
    zero = rest([[0.0, 0.0], [0.0, 0.0]], mean_abs_cosine=None, stable=True, largest_multiplier=0.5)
    found = finding(equilibria=(zero,), place=0, basins=basins(share(3, 0, rank=0)))
    assert found.words[0] == "All 3 random starts end with all tokens zero."
    assert found.title == "Tokens shrink to zero"
    assert "mean |cos|" not in dict(zero.facts())


def test_nothing_found_is_said():
    found = finding()
    assert found.words[:2] == (
        "All 3 random starts end with all tokens equal: they collapse.",
        "No equilibrium was found.",
    )
    assert MEANT["consensus"] in found.notes
    assert Reader(found.to_html()).open == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "neutral to first order: token 0 has a multiplier of length one; all others are at most 0.0572"),
        ({"largest_other_multiplier": None}, "neutral to first order: token 0 has a multiplier of length one"),
        # a number that rounding alone would leave is not presented as one
        ({"largest_other_multiplier": 1.7e-18, "neutral_tokens": (0, 1)},
         "neutral to first order: tokens 0-1 have a multiplier of length one; all others are zero to rounding"),
        ({"stable": True, "largest_multiplier": 0.22109}, "stable: small changes shrink, in the end by a factor of "
         "0.2211 per step"),
        ({"stable": True, "largest_multiplier": 0.99996},
         "stable: small changes shrink, in the end by 0.004% per step"),
        ({"stable": False, "largest_multiplier": 1.9428,
          "components": (ComponentValue(tokens=(0,), largest_multiplier=1.0),
                         ComponentValue(tokens=(1, 2), largest_multiplier=1.9428))},
         "unstable: tokens 1-2 have the largest multiplier, 1.943, so small changes grow"),
        ({"undecided_tokens": (1, 2, 4)},
         "not decided: tokens 1-2, 4 have multipliers that may be one and are known to no better than 0.001, too "
         "little to say whether small changes grow, stay or shrink"),
    ],
)  # fmt: skip
def test_stability_in_words(changed, words):
    assert rest([[1.0, 0.0], [1.0, 0.0]], **changed).stability == words


def test_what_comes_back():
    def said(**changed):
        return rest([[1.0, 0.0], [1.0, 0.0]], **changed).came_back

    assert said() is None
    assert said(returns=0.47) == "47% of random pushes of 1% within 1,000 steps"
    assert said(returns=0.47, returns_mirrored=0.5).endswith(
        "within 1,000 steps, 50% more to the mirror image"
    )
    assert said(returns=0.0, returns_mirrored=0.0) == "0% of random pushes of 1% within 1,000 steps"


def test_a_proof_in_words():
    pivots = [Pivot(token=at, channel=9 - at, sign=(-1) ** at, log10_size=-100.0 * at) for at in range(6)]
    words = RankProof(pivots=tuple(pivots)).words
    assert (
        "token 0: 1 in channel 9, token 1: -1e-100 in channel 8, token 2: 1e-200 in channel 7, and so on"
        in words
    )
    assert words.endswith("token 5: -1e-500 in channel 4), so they are independent; all tokens are zero before "
                          "channel 4: rank exactly 6.")  # fmt: skip
    assert (
        RankProof(pivots=(pivots[0],), all_equal=True).words
        == "Every token is the unit vector of channel 9: rank 1."
    )


def test_notes_say_what_must_be_known():
    apart = Apart(mask="blocks:2", tokens=2, groups=((0,), (1,)))
    alike = rest([[0, 1], [1, 0]], states=4)
    found = finding(equilibria=(alike,), place=0, system=system(2, 2, apart=apart), is_full=True)
    assert found.notes[0] == apart.words
    assert found.notes[1].startswith("4 distinct states are alike")
    assert found.notes[1].endswith("they belong to a continuum of equilibria.")
    assert (
        found.notes[2] == "The list of 1 equilibrium is as long as the search allows; it may have found more."
    )
    assert not any("odd" in one for one in found.notes)
    assert any("odd" in one for one in two_tokens().notes)


def test_a_long_list_and_a_large_table_are_cut_but_for_what_is_shown():
    many = tuple(rest([[1.0, 0.0], [0.0, 1.0]], singular_values=[2.0, 1.0 / (at + 1)]) for at in range(60))
    found = finding(equilibria=many, place=57)
    listed = found._listed()
    assert [row[0] for row in listed.rows[-3:]] == ["40", "58", "19 more"]
    assert all(len(row) == len(listed.columns) for row in listed.rows)
    wide = finding(20, 30, equilibria=(rest([[-0.0, -1e-12] + [0.25] * 28] * 20),), place=0)
    text = str(wide)
    assert "0      0.000000  -1e-12  0.250000" in text
    assert "\n11 " in text
    assert "\n12 " not in text.partition("Where random")[0]


def test_a_page_is_whole_and_holds_the_numbers():
    found = two_tokens()
    read = Reader(found.to_html("rankscope equilibria"))
    assert read.open == []
    assert read.handlers == []
    assert {tag for tag, _ in read.elements}.isdisjoint({"script", "iframe", "object", "form"})
    assert len(read.of("svg")) >= 5
    page = found.to_html()
    for words in (*found.words, "Where random starts end", "not at rest (unresolved)", "Multipliers"):
        assert words in page
    assert str(found).index(found.words[0]) < str(found).index("Its tokens")


def test_hostile_text_stays_text():
    found = two_tokens(
        system=system(2, 2, values=f"file:{HOSTILE}", mask=HOSTILE, attention=f"softmax:{HOSTILE}"),
        definitions={HOSTILE: HOSTILE},
    )
    page = found.to_html(HOSTILE)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "\x1b" not in page
    assert "\x1b" not in str(found)
    assert Reader(page).open == []
    assert "<script" not in found.chart().svg()


@pytest.mark.parametrize(
    "spoiled",
    [
        lambda whole: whole.update(place=3),
        lambda whole: whole["basins"]["shares"][0].update(equilibrium=7),
        lambda whole: whole["basins"]["shares"][0].update(count=1),
        lambda whole: whole["basins"].update(limit=[9] * 40),
        lambda whole: whole["equilibria"][0].update(tokens=[[1.0], [1.0, 2.0]]),
        lambda whole: whole["equilibria"][0].update(singular_values=[]),
        lambda whole: whole["equilibria"][0].update(rank_range=[1, 5]),
        lambda whole: whole["equilibria"][0].update(stable="perhaps"),
        lambda whole: whole["system"].update(tokens=3),
        lambda whole: whole["trajectories"].update(steps=[0, 1]),
        lambda whole: whole["trajectories"]["starts"][0].pop(),
        lambda whole: whole.update(extra=1),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(spoiled, tmp_path):
    whole = json.loads(two_tokens().to_json())
    file = tmp_path / "a.json"
    file.write_text(json.dumps(whole))
    assert EquilibriaFinding.load(file).words == two_tokens().words
    spoiled(whole)
    file.write_text(json.dumps(whole))
    with pytest.raises(FileError, match="is not whole"):
        EquilibriaFinding.load(file)


def test_multipliers_of_neighbors_stand_together():
    parts = tuple(ComponentValue(tokens=(at,), largest_multiplier=0.5) for at in range(4))
    last = ComponentValue(tokens=(4, 6), largest_multiplier=None)
    facts = dict(rest([[1.0, 0.0]] * 7, components=(*parts, last)).facts())
    assert facts["multipliers"] == "0.5 (tokens 0-3), - (tokens 4, 6)"


def test_numbers_that_rounding_alone_would_leave_are_not_presented():
    one = rest(np.eye(3), singular_values=(1.5, 0.25, 3e-16), equation_residual=0.0)
    facts = dict(one.facts())
    assert facts["singular values"] == "1.5, 0.25, and 1 not above the threshold"
    assert facts["one step moves"] == "no entry of its tokens by more than 1e-15"
    exact = rest(np.eye(2), digits=40, equation_residual=3e-41)
    assert exact.moved == "no entry of its tokens by more than 3e-41, in arithmetic of 40 digits"
    assert dict(rest(np.zeros((2, 2))).facts())["singular values"] == "2 not above the threshold"


def test_tokens_are_equal_only_up_to_the_threshold():
    assert rest([[1.0, 0.0], [1.0, 1e-13]]).is_consensus
    assert not rest([[1.0, 0.0], [math.cos(1e-3), math.sin(1e-3)]]).is_consensus
    assert not rest([[1.0, 0.0], [-1.0, 0.0]]).is_consensus  # rank one, and not equal
