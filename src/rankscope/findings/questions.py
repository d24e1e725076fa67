"""Questions that people ask about rank collapse, each with an answer, a command that shows it, and what is proven.

The page ``docs/questions.md`` is made from this list by ``python -m rankscope.findings.questions docs/questions.md``;
``python docs/making.py write questions.md`` then runs its commands. ``rankscope list questions`` prints the list.
"""

import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

When = Literal["test", "papers", "docs"]
"""When an output on the page is checked: in every test run, with the papers, or by ``make docs`` alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One question.

    Args:
        name: a word or two, its heading's anchor.
        answer: two sentences, without numbers that a command would have to make.
        command: shows it; ``shows`` says which part of its output the page quotes.
        proven: what a proof says, and where it is.
        measured: what was only run, and how far that goes.
        picture: a file of the docs with what it shows.
        pages: where to read on.
    """

    name: str
    question: str
    answer: str
    command: str
    proven: str
    measured: str
    picture: tuple[str, str]
    shows: str = "words"
    when: When = "papers"
    pages: tuple[str, ...] = ()


QUESTIONS = (
    Question(
        name="why",
        question="Why does pure attention collapse?",
        answer="Every output token is a weighted mean of the same values, and means of nearly equal tokens are more "
        "equal still. Nearly equal tokens also have nearly equal attention weights, so that each layer cubes the "
        "differences, up to a constant: the fall is doubly exponential.",
        command="rankscope rate --mask full --layers 20",
        shows="words",
        when="test",
        proven="The cube is proven near consensus for softmax without a mask, with one constant per layer "
        "([proofs](proofs.md)). The bound that Dong et al. print for several heads is false as printed "
        "([claims](claims.md#several-heads-bound)).",
        measured="That random networks reach the regime in which the cube holds, within a few layers.",
        picture=("split.png", "The residual of attention alone, far below the rounding of the tokens"),
        pages=("split.md",),
    ),
    Question(
        name="softmax",
        question="Is it the averaging or the softmax?",
        answer="It is the averaging: weights that sum to one over all tokens and follow from pairs of tokens alone "
        "cube differences, also in linear attention without any exponential. Weights that stay different for different "
        "queries when all tokens are equal, as under a causal mask, make the fall a fixed factor per layer.",
        command="rankscope atlas --only softmax,linear,sinkhorn,mask:causal --around bare --tokens 32 "
        "--dim 8",
        proven="Order three for weights e^l(x_i, x_j) divided by their sums, with any smooth l of two tokens; order "
        "one for maps whose rows differ at equal tokens, with the second eigenvalue as rate ([proofs](proofs.md)).",
        measured="Both orders and the rate of every layer of the [atlas](atlas.md), in float64.",
        picture=("atlas.png", "How fast each kind of layer makes tokens equal"),
        pages=("atlas.md",),
    ),
    Question(
        name="what-stops-it",
        question="What stops it: skips, MLPs, or both?",
        answer="Skips do: they carry the differences past the averaging, and no MLP can bring back what is gone. An "
        "MLP can only stretch what is left, by at most its Lipschitz constant, and in a random network it does not.",
        command="rankscope collapse --layers 12 --variants san,san+mlp,san+skip,transformer",
        when="test",
        proven="An MLP enlarges the residual by at most its Lipschitz constant ([claims](claims.md#mlp-lipschitz)); "
        "with skips a lower bound holds where the branches are small ([certify](certify.md)).",
        measured="The four variants of random networks, all with the same weights.",
        picture=("collapse.png", "How fast tokens become equal, by mask, norm and architecture"),
        pages=("collapse.md",),
    ),
    Question(
        name="how-much-skip",
        question="How much of a skip is needed?",
        answer="The skip competes with the averaging: near consensus a layer multiplies differences by the "
        "factor on the skip, and the common token by what skip and branch make together. A small factor on "
        "the skip still means a fixed factor per layer instead of a cube.",
        command="rankscope ablate --layers 12 --variants san+skip --skip-scales 0.25,0.5,1",
        shows="words 1-4",
        when="test",
        proven="Near consensus full attention with a skip of strength a multiplies differences by a and the common "
        "row by at most a + |W|; with an orthogonal W the rate is therefore at least a / (a + 1).",
        measured="Random networks at three strengths; they are not near consensus yet, and their value "
        "maps are not orthogonal.",
        picture=("ablate.png", "MiniLM without skips and MLPs"),
        pages=("ablate.md",),
    ),
    Question(
        name="layernorm",
        question="Does LayerNorm matter?",
        answer="Yes, in both directions: a norm cannot stop the averaging itself, but it keeps lengths and so makes "
        "directions the thing that counts. For suitable value maps attention with a norm comes to rest at tokens that "
        "differ.",
        command="rankscope claims layernorm-plays-no-role",
        shows='from "layernorm-plays-no-role" to "layernorm-plays-no-role"',
        when="test",
        proven="Two tokens that stay apart for ever under attention and a norm (Wu et al. 2024; "
        "[claims](claims.md#layernorm-plays-no-role)).",
        measured="How often random starts end there ([equilibria](equilibria.md)).",
        picture=("wu-counterexample.png", "Two tokens: where rank 2 is kept"),
        pages=("equilibria.md", "dynamics.md"),
    ),
    Question(
        name="masks",
        question="Do masks and windows slow it down, and by how much?",
        answer="They turn the cube into a fixed factor per layer: the second eigenvalue of the uniform map over "
        "what each query may read. The narrower a window to both sides, the nearer that factor is to one, "
        "and tokens that never meet never become equal.",
        command="rankscope atlas --only mask:causal,mask:window:2,mask:causal-window:2,mask:dilated:2:2 --around bare "
        "--dim 8",
        proven="The rate near consensus is that eigenvalue; groups that read only themselves stay apart "
        "([claims](claims.md#rate-is-slem), [claims](claims.md#separate-blocks)).",
        measured="Random networks follow it ([figure wu-masks](figures.md)).",
        picture=("wu-masks.png", "How the residual falls with depth, by mask and norm"),
        pages=("collapse.md",),
    ),
    Question(
        name="bigbird",
        question="Do BigBird and Longformer slow it down?",
        answer="Little, compared with a window of the same width: every global token joins all others in two layers. A "
        "few global tokens move the rate from nearly one to well below it.",
        command="rankscope atlas --only mask:window:2,mask:longformer:2:1,mask:longformer:2:4,mask:bigbird:1:1:2 "
        "--around bare --dim 8",
        proven="The eigenvalues, computed from the mask with a certified bracket (`rankscope list masks "
        "--tokens 64`).",
        measured="Nothing beyond: the rate near consensus is that eigenvalue for any such mask.",
        picture=("bigbird.svg", "Windows, and what global tokens make of them"),
        pages=("atlas.md",),
    ),
    Question(
        name="linformer",
        question="Does Linformer slow it down?",
        answer="With random projections of keys and values every token gets a multiple of the common token "
        "of its own, so that lengths differ at first order and directions at second. With projections "
        "whose rows sum to one it cubes differences as softmax does.",
        command="rankscope atlas --only linformer,linformer-means --around bare --tokens 32 --dim 8",
        proven="The direction order is never below the residual order ([proofs](proofs.md)); that it is two here "
        "is not proven.",
        measured="Both orders at random weights.",
        picture=(
            "linformer.svg",
            "Linformer with random projections, and with projections whose rows sum to one",
        ),
        pages=("atlas.md",),
    ),
    Question(
        name="other-attention",
        question="Does Gaussian or other attention behave differently?",
        answer="A Gaussian kernel whose rows are divided by their sum cubes differences as softmax does. Sigmoid and "
        "off-by-one attention keep lengths apart at first order and still cube the differences of direction, which is "
        "all that a norm behind them leaves.",
        command="rankscope atlas --only gaussian-kernel,sigmoid,off-by-one,sparsemax --around bare "
        "--tokens 32 --dim 8",
        proven="The direction order is never below the residual order, and exceeds it exactly where the first term "
        "points along the common token ([proofs](proofs.md)).",
        measured="The orders of all rows of the [atlas](atlas.md).",
        picture=("atlas.png", "How fast each kind of layer makes tokens equal"),
        pages=("atlas.md",),
    ),
    Question(
        name="width",
        question="Do wider networks collapse slower?",
        answer="Not at random weights: attention alone reaches the rounding floor after as many layers at each width "
        "tried. The order of the fall has no width in it, only its constant does.",
        command="rankscope collapse --dims 16,64,256 --layers 6 --seeds 4",
        when="test",
        proven="The order three holds at every width.",
        measured="Three widths, four seeds each; other initialisations move the constant.",
        picture=("wider.svg", "The residual of attention alone at three widths"),
        pages=("collapse.md",),
    ),
    Question(
        name="depth",
        question="Do deeper networks collapse faster?",
        answer="Per layer no, in total yes: every layer adds its factor, or its cube, to those before. With untrained "
        "weights a deep network therefore passes a given similarity that a shallow one never reaches.",
        command="rankscope predict bert-base --layers 4,8,16,32",
        when="test",
        proven="Bounds multiply over layers ([predict](predict.md)).",
        measured="The forecast is a mean-field formula, checked against random networks.",
        picture=("deeper.svg", "What is forecast of untrained networks of four depths"),
        pages=("predict.md",),
    ),
    Question(
        name="width-or-depth",
        question="What is the trade-off between width and depth?",
        answer="With a fixed number of weights one can have few wide layers or many narrow ones, and without skips "
        "only the former keep tokens apart at the start. The figure trains both shapes on sorting, with and "
        "without skips, at equal numbers of weights.",
        command="rankscope reproduce width-depth --fast",
        when="docs",
        proven="Nothing: no theorem relates collapse at the start to what training reaches.",
        measured="One task and small networks; the fast size above has too few seeds to decide anything.",
        picture=("width-depth.png", "Width against depth"),
        pages=("figures.md",),
    ),
    Question(
        name="recurrent",
        question="Is it only attention? What about recurrent networks?",
        answer="A recurrent layer does not keep equal tokens equal, because its state starts at zero. Far from the "
        "start it forgets that, and differences between tokens change by a factor per layer, as under a mask, not by a "
        "cube.",
        command="rankscope atlas --only gru,lstm,rwkv --around bare --tokens 32 --dim 8",
        proven="Nothing about these layers: order one is what a smooth map has unless something cancels.",
        measured="The factor, at random weights and after the first half of the tokens.",
        picture=("recurrent.svg", "Recurrent layers, from the middle token on"),
        pages=("atlas.md", "scan.md"),
    ),
    Question(
        name="state-space",
        question="And state-space models such as Mamba?",
        answer="In a layer whose channels are decaying averages of the past, stacked copies without skips make "
        "tokens far from the start alike at a fixed rate, as under a causal mask. A strong enough skip keeps tokens "
        "apart at any given depth.",
        command="rankscope atlas --only mamba,diagonal-state-space --around bare,skip --tokens 32 --dim 8",
        proven="The angle between two tokens falls by at most 2 arcsin(c / lambda) per layer "
        "([claims](claims.md#lambda-skip)).",
        measured="The factors, at random weights and after the first half of the tokens; that one linear state space "
        "with a norm collapses without skips.",
        picture=("state-space.svg", "State-space layers, bare and with a skip"),
        pages=("atlas.md", "claims.md"),
    ),
    Question(
        name="graphs",
        question="Is over-smoothing in graph networks the same thing?",
        answer="Yes: a graph is a mask, and the rate is the second eigenvalue of the neighbourhood average, with or "
        "without attention. The symmetric GCN makes nodes parallel, not equal: their lengths stay apart by degree.",
        command="rankscope atlas --only gcn@karate,random-walk-gcn@karate,gat@karate,random-walk-gcn@cycle:20 "
        "--around bare --dim 8",
        proven="Exponential fall for GCN (Oono and Suzuki 2020) and graph attention (Wu et al. 2023), "
        "[run here](claims.md#gat-exponential).",
        measured="That five graphs fall at that eigenvalue over 400 layers.",
        picture=("graphs.svg", "Layers of graphs fall at the second eigenvalue of the neighbourhood average"),
        pages=("claims.md", "atlas.md"),
    ),
    Question(
        name="vision",
        question="Do vision models collapse too?",
        answer="A vision transformer is the same encoder on patches, so that the same forecast applies, and scans work "
        "on images. Untrained networks of that shape are forecast to keep their patches apart at the usual depths.",
        command="rankscope predict ViT-H --layers 8,16,32",
        when="docs",
        proven="Nothing special to images.",
        measured="The forecast for an untrained network of that shape; `rankscope scan MODEL --images folder` for "
        "yours.",
        picture=("vision.svg", "What is forecast of untrained vision transformers"),
        pages=("scan.md", "predict.md"),
    ),
    Question(
        name="long-paths",
        question="Are long paths through a network useless?",
        answer="Long paths are averaged most often, so that they carry little of what tells tokens apart, although "
        "there are far more of them. In trained networks short paths carry nearly all of the output's differences.",
        command="rankscope paths --layers 6 --heads 4 --dim 32 --tokens 16 --variant san+skip",
        shows="words 1",
        when="test",
        proven="The sum over paths is exact ([claims](claims.md#path-sum)); a single path falls by its product of "
        "maps.",
        measured="Which lengths carry how much, network by network.",
        picture=("paths-sort.png", "What paths of each length achieve in a network that sorts"),
        pages=("paths.md", "figures.md"),
    ),
    Question(
        name="in-principle",
        question="Are they useless in principle, or because training does not use them?",
        answer="At random weights long paths are nearly rank one, but weights exist for which they are not. So "
        "what a network makes of them is decided by training, which has no reason to use them unless the "
        "objective asks for it.",
        command="rankscope reproduce long-paths --fast",
        when="docs",
        proven="Maps that are permutations lose nothing, so no bound without the weights can forbid useful "
        "long paths.",
        measured="What three objectives that ask for long paths achieve and cost, on one task and with small "
        "networks.",
        picture=("long-paths.png", "Training that asks for long paths"),
        pages=("figures.md",),
    ),
    Question(
        name="make-useful",
        question="Can long paths be made useful, by regularising or by dropping paths?",
        answer="Not so far: dropping skips at random makes the network work without them, at a price with them, but "
        "single long paths stay useless. A penalty keeps the tokens of long paths apart, and alone they still achieve "
        "nothing.",
        command="rankscope list objectives",
        shows="all",
        when="test",
        proven="Nothing.",
        measured="The figure long-paths, on sorting.",
        picture=("long-paths.png", "Training that asks for long paths"),
        pages=("figures.md", "train.md"),
    ),
    Question(
        name="balance",
        question="Can one balance skip against MLP on purpose?",
        answer="Yes: the factor on the skip and the size of the branches set the rate, and both can be changed by "
        "surgery and measured before training. rankscope tries such changes and ranks them by what they keep.",
        command="rankscope ablate --layers 12 --variants transformer --norm layer --suggest",
        shows='from "What if" to "skip-scale:0.5"',
        when="docs",
        proven="Lower bounds for a given network, by `certify --require-lower`.",
        measured="What each change does to the tokens of this network; not what it does to training.",
        picture=("balance.svg", "What each change of skips and branches keeps of a random network"),
        pages=("ablate.md",),
    ),
    Question(
        name="prune",
        question="What can be pruned?",
        answer="Heads through which little of the output's differences passes can go first; a ranking by all paths "
        "through a head says which. What is lost is measured with the head really taken out, because others react.",
        command="rankscope paths --layers 6 --heads 4 --dim 32 --tokens 16 --variant san+skip --prune",
        shows="words",
        when="docs",
        proven="Nothing: a ranking is no bound.",
        measured="The output's change as heads are removed, next to two simpler rankings.",
        picture=("paths.png", "Paths through MiniLM"),
        pages=("paths.md",),
    ),
    Question(
        name="lower-bounds",
        question="Are there lower bounds?",
        answer="Yes: for a given network and text certify proves that tokens differ by at least so much "
        "after every layer. For attention alone such bounds vanish with depth, as they must.",
        command="rankscope certify --layers 6 --heads 2 --dim 16 --tokens 8 --seed 5 --variant san+skip --values "
        "orthogonal",
        shows="words 1",
        when="test",
        proven="Every number that certify prints as proven.",
        measured="Nothing: what is shown is a proof, with rounding included.",
        picture=("certify_skip.png", "What is proven of attention with skips"),
        pages=("certify.md", "proofs.md"),
    ),
    Question(
        name="ensemble",
        question="Is the network an ensemble of shallow ones?",
        answer="As an identity yes: with maps held fixed the output is the sum over all paths, and most of "
        "its differences come from short ones. As a statement about training no: paths share weights and "
        "cannot be trained one by one.",
        command="rankscope list architectures",
        shows="all",
        when="test",
        proven="The sum over paths, and the distribution of their lengths ([claims](claims.md#path-count)).",
        measured="Weights of lengths in given networks.",
        picture=("lengths.png", "How many paths have which length"),
        pages=("paths.md",),
    ),
    Question(
        name="better",
        question="Does preventing collapse make a model better?",
        answer="Where tokens are equal nothing that tells them apart can be read any more, and queries and "
        "keys of attention get no gradient. Beyond that more spread is not better in itself: trained "
        "models differ widely in it, and we know of no evidence that raising it in a healthy model helps.",
        command="rankscope scan minilm",
        shows='from "Healthy" to "Healthy"',
        when="papers",
        proven="Attention and parts of single tokens keep equal tokens equal at every later layer; no "
        "weights of queries and keys change what attention with rows that sum to one makes of equal values.",
        measured="Trained checkpoints are healthy; their variants without skips are not.",
        picture=("dong-bert.png", "BERT without skips, without MLPs, without either"),
        pages=("verdict.md", "scan.md"),
    ),
)
"""In the order in which one would ask them."""

HEAD = """# Questions

What people ask about rank collapse, with a short answer each, one command that shows it, and what is proven against
what was only measured. Outputs below are made by their commands. `rankscope list questions` prints this list.
"""

BLOCK = re.compile(r"^<!-- made by: (?P<asked>.*?) -->\n```text\n(?P<text>.*?)^```$", re.M | re.S)


def questions_page(old: str = "") -> str:
    """The page as Markdown; outputs are those of the old page, and empty where a command is new."""
    known = {one["asked"]: one["text"] for one in BLOCK.finditer(old)}
    table = [f"- [{one.question}](#{_anchor(one.question)})" for one in QUESTIONS]
    return "\n".join([HEAD, *table, "", *(_section(one, known) for one in QUESTIONS)])


def _section(one: Question, known: dict[str, str]) -> str:
    asked = f"{one.command} | {one.shows} | {one.when}"
    file, words = one.picture
    lines = [f"## {one.question}", "", _wrapped(one.answer), ""]
    lines += ["```sh", one.command, "```", ""]
    lines += [f"<!-- made by: {asked} -->", "```text", f"{known.get(asked, '')}```", ""]
    lines += [f"![{words}]({file})", ""]
    lines += [_wrapped(f"*Proven:* {one.proven}"), "", _wrapped(f"*Measured:* {one.measured}"), ""]
    read = ", ".join(f"[{page.removesuffix('.md')}]({page})" for page in one.pages)
    return "\n".join([*lines, f"Read on: {read}.", ""])


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _anchor(heading: str) -> str:
    """
    >>> _anchor("Is it the averaging or the softmax?")
    'is-it-the-averaging-or-the-softmax'
    """
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def main(arguments: Sequence[str]) -> None:
    """Write the page to the file that is named, with the outputs that it holds."""
    page = Path(arguments[0])
    page.write_text(questions_page(page.read_text("utf-8") if page.exists() else ""), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
