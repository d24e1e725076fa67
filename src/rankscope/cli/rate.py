"""``rankscope rate``: the order and the rate of collapse, measured and predicted."""

from typing import TYPE_CHECKING, Annotated

from typer import Option

from rankscope.cli import options
from rankscope.cli.options import Format, chosen_format, seed_list
from rankscope.cli.output import check_outputs, emit, text_table, write_table

if TYPE_CHECKING:
    from rankscope.results import Table


def rate(
    layers: Annotated[int, Option(help="Blocks to follow; a rate needs at least 16.")] = 200,
    heads: options.Heads = 1,
    dim: options.Dim = 16,
    tokens: options.Tokens = 12,
    seeds: options.Seeds = None,
    seed: options.Seed = None,
    variant: Annotated[str, Option(help="san, san+mlp, san+skip, transformer; -norm drops norms.")] = "san",
    norm: Annotated[str, Option(help="none, layer, rms, sphere.")] = "none",
    placement: options.Placement = "post",
    mask: Annotated[str, Option(help="Mask rule, see 'rankscope list masks'.")] = "causal",
    position: options.Position = "none",
    values: options.Values = "orthogonal",
    init: options.Init = "small",
    plot: options.Plot = None,
    format_: options.AsFormat = None,
    output: options.Output = None,
) -> None:
    """Measure the order and rate of collapse with the split pass, and predict them from the map at consensus.

    The default network has no norm and no MLP, one orthogonal matrix per layer split over the heads, and query and
    key entries of standard deviation 0.2/sqrt(dim), so that there is no plateau. The rate is that of the Frobenius
    residual divided by the growth of the common row; the absolute one is rate times value_growth.
    """
    wanted = chosen_format(format_, output)
    check_outputs(output, plot)
    from rankscope.studies import RateConfig
    from rankscope.studies import rate as run

    config = RateConfig.of(
        layers=layers,
        heads=heads,
        dim=dim,
        tokens=tokens,
        seeds=seed_list(seeds, seed),
        variant=variant,
        norm=norm,
        placement=placement,
        mask=mask,
        position=position,
        values=values,
        init=init,
    )
    table = run(config)
    if wanted is Format.TABLE:
        write_table(table, "", None, None, plot)
        emit(_fit_text(table), output)
    else:
        write_table(table, "Order and rate of collapse", wanted, output, plot)


def _fit_text(table: "Table") -> str:
    shown = [[name, _cell(value)] for name, value in table.sections["fit"].items()]
    return text_table(["fit", "value"], shown)


def _cell(value: object) -> str:
    if value is None or value == []:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
