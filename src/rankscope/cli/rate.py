"""``rankscope rate``: the order and the rate of collapse, measured and predicted."""

from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from rankscope.cli import options
from rankscope.cli.options import given_inputs, mask_files, seed_list
from rankscope.cli.output import prepared, text_table, write_table
from rankscope.errors import ConfigError

if TYPE_CHECKING:
    from rankscope.results import Table


RANDOM: dict[str, Any] = {
    "layers": 200,
    "heads": 1,
    "dim": 16,
    "tokens": 12,
    "norm": "none",
    "placement": "post",
}
RANDOM |= {"mask": "causal", "position": "none", "values": "orthogonal", "init": "small"}
"""Options of random networks with their defaults."""

OF_MODELS = ("layers", "mask", "norm")
"""Those that a model takes too: how deep to repeat its blocks, and another mask, or no norm."""


def rate(
    model: Annotated[
        str | None,
        Argument(
            help="A model as for 'rankscope ablate'; leave out for a random network.", show_default=False
        ),
    ] = None,
    layers: Annotated[
        int | None,
        Option(
            help="Blocks to follow; a rate needs at least 16. A model's blocks are repeated up to there.",
            show_default="200, or the model's own",
        ),
    ] = None,
    variant: Annotated[str, Option(help="san, san+mlp, san+skip, transformer; -norm drops norms.")] = "san",
    mask: Annotated[
        str | None,
        Option(help="Mask rule, see 'rankscope list masks'.", show_default="causal, or the model's own"),
    ] = None,
    norm: Annotated[
        str | None,
        Option(
            help="Random network: none, layer, rms, sphere. Model: own, none.", show_default="none, or own"
        ),
    ] = None,
    heads: Annotated[int | None, Option(help="Random network: heads.", show_default="1")] = None,
    dim: Annotated[int | None, Option(help="Random network: width of a token.", show_default="16")] = None,
    tokens: Annotated[int | None, Option(help="Random network: tokens.", show_default="12")] = None,
    placement: Annotated[
        str | None, Option(help="Random network: post, pre, sandwich, parallel.", show_default="post")
    ] = None,
    position: Annotated[
        str | None, Option(help="Random network: position rule.", show_default="none")
    ] = None,
    values: Annotated[
        str | None, Option(help="Random network: gaussian, orthogonal, identity.", show_default="orthogonal")
    ] = None,
    init: Annotated[str | None, Option(help="Random network: initialisation.", show_default="small")] = None,
    no_error: options.NoError = False,
    seeds: options.Seeds = None,
    seed: options.Seed = None,
    weights: options.Weights = None,
    texts: Annotated[str | None, Option(help="Model: file with one text per line, or - for stdin.")] = None,
    text: Annotated[list[str] | None, Option(help="Model: a text; may be given several times.")] = None,
    inputs: options.Inputs = None,
    call: options.Call = None,
    loader: options.Loader = None,
    random_tokens: Annotated[str | None, Option(help="Model: TxN, T texts of N random tokens.")] = None,
    vocab: options.Vocab = None,
    max_texts: Annotated[int | None, Option(help="Model: texts that are followed.", show_default="4")] = None,
    dtype: Annotated[str | None, Option(help="Model: load in this dtype.")] = None,
    allow_pickle: Annotated[bool, Option("--allow-pickle", help="Model: load pickles.")] = False,
    trust_remote_code: Annotated[
        bool, Option("--trust-remote-code", help="Model: run code that comes with it.")
    ] = False,
    plot: options.Plot = None,
    format_: options.AsFormat = None,
    output: options.Output = None,
) -> None:
    """Measure the order and rate of collapse with the split pass, and predict them from the map at consensus.

    The default network has no norm and no MLP, one orthogonal matrix per layer split over the heads, and query and
    key entries of standard deviation 0.2/sqrt(dim), so that there is no plateau. The rate is that of the Frobenius
    residual divided by the growth of the common row; the absolute one is rate times value_growth. Of a model, one
    variant is followed on every text by itself.
    """
    wanted = prepared(format_, output, plot, reads=(model, texts, inputs, call, loader, *mask_files(mask)))
    fed = given_inputs(texts=texts, text=text, inputs=inputs, call=call, loader=loader)
    given: dict[str, Any] = {
        "layers": layers,
        "heads": heads,
        "dim": dim,
        "tokens": tokens,
        "norm": norm,
        "mask": mask,
    }
    given |= {"placement": placement, "position": position, "values": values, "init": init}
    given = {name: value for name, value in given.items() if value is not None}
    if model is None:
        asked: dict[str, Any] = {
            "--texts": texts,
            "--text": text,
            "--inputs": inputs,
            "--call": call,
            "--loader": loader,
            "--random-tokens": random_tokens,
            "--vocab": vocab,
            "--dtype": dtype,
        }
        asked |= {"--max-texts": max_texts, "--weights": weights}
        asked |= {"--allow-pickle": allow_pickle, "--trust-remote-code": trust_remote_code}
        used = [name for name, value in asked.items() if value not in (None, False, [])]
        if used:
            raise ConfigError(f"{', '.join(used)} belongs to a model, but none was named; give a MODEL")
        table = _of_random(RANDOM | given | {"error": not no_error}, variant, seed_list(seeds, seed))
    else:
        foreign = [f"--{name}" for name in given if name not in OF_MODELS]
        if foreign:
            raise ConfigError(f"{', '.join(foreign)} belongs to a random network, but {model!r} was named")
        own: dict[str, Any] = {
            "weights": weights,
            "random_tokens": random_tokens,
            "vocab": vocab,
            "max_texts": 4 if max_texts is None else max_texts,
            "dtype": dtype,
        }
        own |= {"variants": (variant,), "masks": (mask or "own",), "norm": norm or "own"}
        load = {"allow_pickle": allow_pickle, "trust_remote_code": trust_remote_code}
        from rankscope.studies.rate_models import rate_model

        own |= {"seeds": seed_list(seeds, seed), "error": not no_error}
        table = rate_model(model, layers=layers, load=load, **fed, **own)
    write_table(table, "Order and rate of collapse", wanted, output, plot, text=_fit_text)


def _of_random(chosen: dict[str, Any], variant: str, seeds: tuple[int, ...]) -> "Table":
    from rankscope.studies import RateConfig
    from rankscope.studies import rate as run

    return run(RateConfig.of(**chosen, variant=variant, seeds=seeds))


def _fit_text(table: "Table") -> str:
    fit = table.sections["fit"]
    shown = [[name, _cell(value)] for name, value in fit.items() if name != "reason"]
    reason = f"\n{fit['reason']}" if fit["reason"] else ""
    return text_table(["fit", "value"], shown) + reason


def _cell(value: object) -> str:
    if value is None or value == []:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
