"""``rankscope equilibria``: where attention with a norm comes to rest, at which rank, and who gets there."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from rankscope.cli import options
from rankscope.cli.options import Format, mask_files
from rankscope.cli.output import command_line, note, prepared, progress, write_table

if TYPE_CHECKING:
    from rankscope.plots import Chart
    from rankscope.results import Table


def equilibria(
    tokens: Annotated[int, Option(help="Tokens of a state.")] = 6,
    dim: options.Dim = 4,
    mask: Annotated[str, Option(help="Mask rule, see 'rankscope list masks'.")] = "causal",
    rank: Annotated[
        int | None,
        Option(
            help="Construct an equilibrium of exactly this rank (value map shear:W).", show_default="search"
        ),
    ] = None,
    norm: Annotated[str, Option(help="What ends a step: sphere, layer, rms, none.")] = "sphere",
    values: Annotated[
        str,
        Option(
            help="Value map: shear:W (ones on the diagonal, W above it), identity, orthogonal, gaussian, file:PATH "
            "(.npy, .csv, .safetensors)."
        ),
    ] = "shear:10",
    attention: Annotated[
        str,
        Option(
            help="uniform, softmax:BETA (logits BETA x_i.x_j), gaussian (random query and key maps), weight:ALPHA (of "
            "2 tokens: what the second puts on the first)."
        ),
    ] = "uniform",
    frozen: Annotated[bool, Option("--frozen", help="Keep the attention maps of each start.")] = False,
    starts: Annotated[int, Option(help="Random starts to run; 0 for the construction alone.")] = 200,
    steps: Annotated[int, Option(help="Steps per start, at most.")] = 2000,
    newton: Annotated[int, Option(help="Newton searches from further random states.")] = 50,
    pushes: Annotated[int, Option(help="Small random pushes at every equilibrium: how many come back.")] = 64,
    trajectories: Annotated[int, Option(help="Starts whose way is recorded.")] = 3,
    seed: Annotated[int, Option(help="Of random maps and starts.")] = 0,
    plot: options.Plot = None,
    format_: options.AsFormat = None,
    output: options.Output = None,
) -> None:
    """Find where X <- norm(A X W) comes to rest: equilibria, their rank and stability, and which starts reach them.

    A is the attention map of the tokens X under the mask, W the value map; the norm brings every token to length one.
    With --rank an equilibrium of exactly that rank is constructed, and random starts of the same system show how many
    reach it. The same weights without the norm are run for comparison.
    """
    wanted = prepared(format_, output, plot, reads=mask_files(mask, values))
    from rankscope.studies.equilibria_config import EquilibriaConfig
    from rankscope.studies.equilibria_study import equilibria as find

    config = EquilibriaConfig.of(
        tokens=tokens,
        dim=dim,
        mask=mask,
        rank=rank,
        norm=norm,
        values=values,
        attention=attention,
        frozen=frozen,
        starts=starts,
        steps=steps,
        newton=newton,
        pushes=pushes,
        trajectories=trajectories,
        seed=seed,
    )
    with progress("equilibria") as advance:
        table = find(config, progress=advance)
    _write(table, wanted, output, plot)


def _write(table: "Table", wanted: Format, output: Path | None, plot: Path | None) -> None:
    from rankscope.cli.equilibria_text import equilibria_text
    from rankscope.results.equilibria_lines import headline

    title = f"Equilibria: {headline(table.sections['system'])}"
    write_table(table, title, wanted, output, plot, text=equilibria_text, page=_page, curves=_chart)
    if wanted is not Format.TABLE or output is not None:
        for line in table.sections["notes"]:
            note(f"note: {line}")


def _page(table: "Table", title: str) -> str:
    from rankscope.report.equilibria_page import equilibria_page

    return equilibria_page(table, title=title, command=command_line())


def _chart(table: "Table") -> "Chart":
    from rankscope.plots.dynamics_chart import equilibria_chart

    return equilibria_chart(table)
