"""``rankscope collapse``: random networks, and how fast their tokens become equal."""

from typing import Annotated

from typer import Option

from rankscope.cli import options
from rankscope.cli.options import listed, mask_files, seed_list
from rankscope.cli.output import note, prepared, progress, write_table


def collapse(
    layers: Annotated[int, Option(help="Blocks per network.")] = 12,
    heads: options.Heads = 4,
    dim: options.Dim = 64,
    tokens: options.Tokens = 32,
    seeds: options.Seeds = None,
    seed: options.Seed = None,
    variant: Annotated[
        str, Option(help="san, san+mlp, san+skip, transformer; -norm drops norms; comma list.")
    ] = "san",
    norm: Annotated[str, Option(help="none, layer, rms, sphere; comma list.")] = "none",
    placement: options.Placement = "post",
    mask: Annotated[str, Option(help="Mask rules, see 'rankscope list masks'; comma list.")] = "full",
    position: options.Position = "none",
    values: options.Values = "gaussian",
    init: options.Init = "paper",
    measure: Annotated[
        str | None, Option(help="Measures, see 'rankscope list measures'; comma list.")
    ] = None,
    sites: Annotated[
        str, Option(help="Where to measure: block, attention, mlp, final; comma list.")
    ] = "block",
    dtype: Annotated[str, Option(help="float64, float32, bfloat16, float16.")] = "float64",
    device: Annotated[str, Option(help="Where to run.")] = "cpu",
    split: Annotated[
        bool, Option("--split", help="Carry the residual itself, far below the rounding of the states.")
    ] = False,
    no_error: options.NoError = False,
    plot: options.Plot = None,
    format_: options.AsFormat = None,
    output: options.Output = None,
) -> None:
    """Run random networks and show how fast their tokens become equal.

    Networks of one seed share weights across variants, masks and norms. Numbers below the rounding floor of the
    arithmetic are marked: they are noise, not collapse. With --split floors are
    estimated from a perturbed run, which --no-error leaves out.
    """
    wanted = prepared(format_, output, plot, reads=mask_files(mask))
    from rankscope.studies import CollapseConfig
    from rankscope.studies import collapse as run

    config = CollapseConfig.of(
        layers=layers,
        heads=heads,
        dim=dim,
        tokens=tokens,
        seeds=seed_list(seeds, seed),
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
        split=split,
        error=not no_error,
        **({} if measure is None else {"measures": listed(measure)}),
    )
    with progress("networks") as advance:
        table = run(config, advance=advance)
    for sentence in table.sections["notes"]:
        note(sentence)
    if no_error:
        note(table.sections["split"]["words"])
    write_table(table, "Collapse of random networks", wanted, output, plot)
