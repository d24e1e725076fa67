"""``rankscope collapse``: random networks, and how fast their tokens become equal."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from rankscope.cli.options import Format, chosen_format, listed
from rankscope.cli.output import check_outputs, emit, note, progress, rendered_table
from rankscope.errors import ConfigError

if TYPE_CHECKING:
    from rankscope.results import Table


def collapse(
    layers: Annotated[int, Option(help="Blocks per network.")] = 12,
    heads: Annotated[int, Option(help="Heads per attention; must divide --dim.")] = 4,
    dim: Annotated[int, Option(help="Width of a token.")] = 64,
    tokens: Annotated[int, Option(help="Tokens per text, N(0, 1) each.")] = 32,
    seeds: Annotated[int | None, Option(help="How many networks: seeds 0 .. N-1.")] = None,
    seed: Annotated[int | None, Option(help="One network, of this seed.  [default: 0]")] = None,
    variant: Annotated[
        str, Option(help="san, san+mlp, san+skip, transformer; -norm drops norms; comma list.")
    ] = "san",
    norm: Annotated[str, Option(help="none, layer, rms, sphere; comma list.")] = "none",
    placement: Annotated[str, Option(help="Where norms stand: post, pre, sandwich, parallel.")] = "post",
    mask: Annotated[str, Option(help="Mask rules, see 'rankscope list masks'; comma list.")] = "full",
    position: Annotated[str, Option(help="Position rule, see 'rankscope list positions'.")] = "none",
    values: Annotated[str, Option(help="Value maps: gaussian, orthogonal, identity.")] = "gaussian",
    init: Annotated[str, Option(help="Initialisation, see 'rankscope list inits'.")] = "paper",
    measure: Annotated[
        str | None, Option(help="Measures, see 'rankscope list measures'; comma list.")
    ] = None,
    sites: Annotated[
        str, Option(help="Where to measure: block, attention, mlp, final; comma list.")
    ] = "block",
    dtype: Annotated[str, Option(help="float64, float32, bfloat16, float16.")] = "float64",
    device: Annotated[str, Option(help="Where to run.")] = "cpu",
    plot: Annotated[Path | None, Option(help="Draw the curves: .png, .svg, .html or .json.")] = None,
    format_: Annotated[Format | None, Option("--format", help="How to print.  [default: table]")] = None,
    output: Annotated[Path | None, Option(help="Write there instead of stdout.")] = None,
) -> None:
    """Run random networks and show how fast their tokens become equal.

    Networks of one seed share weights across variants, masks and norms. Numbers below the rounding floor of the
    arithmetic are marked: they are noise, not collapse.
    """
    wanted = chosen_format(format_, output)
    check_outputs(output, plot)
    from rankscope.studies import CollapseConfig
    from rankscope.studies import collapse as run

    config = CollapseConfig.of(
        layers=layers,
        heads=heads,
        dim=dim,
        tokens=tokens,
        seeds=_seeds(seeds, seed),
        variants=listed(variant),
        masks=listed(mask),
        norms=listed(norm),
        placement=placement,
        position=position,
        values=values,
        init=init,
        sites=listed(sites),
        dtype=dtype,
        device=device,
        **({} if measure is None else {"measures": listed(measure)}),
    )
    with progress("networks") as advance:
        table = run(config, advance=advance)
    _write(table, wanted, output, plot)


def _seeds(count: int | None, one: int | None) -> tuple[int, ...]:
    if count is not None and one is not None:
        raise ConfigError("give --seeds N for many networks or --seed S for one, not both")
    if count is not None and count < 1:
        raise ConfigError(f"--seeds {count}: need at least one network")
    if one is not None and one < 0:
        raise ConfigError(f"--seed {one}: seeds are non-negative integers")
    return (one or 0,) if count is None else tuple(range(count))


def _write(table: "Table", wanted: Format, output: Path | None, plot: Path | None) -> None:
    if plot is not None:
        from rankscope.plots import layer_curves, save_figure

        save_figure(layer_curves(table), plot)
        note(f"wrote {plot}")
    match wanted:
        case Format.TABLE:
            emit(rendered_table(table), output)
        case Format.JSON:
            emit(table.to_json_text(), output)
        case Format.CSV:
            emit(table.to_csv(), output)
        case Format.PARQUET:
            if output is None:
                raise ConfigError("parquet is a binary format; give --output FILE")
            table.save(output)
            note(f"wrote {output}")
        case Format.HTML:
            from rankscope.plots import layer_curves
            from rankscope.report import page

            command = shlex.join(["rankscope", *sys.argv[1:]])
            emit(
                page(table, [layer_curves(table)], title="Collapse of random networks", command=command),
                output,
            )
