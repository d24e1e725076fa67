"""What every sequence of heads contributes to the output, exactly, without enumerating the sequences."""

from rankscope.paths.attribution import Attribution as Attribution
from rankscope.paths.attribution import Source as Source
from rankscope.paths.attribution import attribute as attribute
from rankscope.paths.freeze import FrozenNetwork as FrozenNetwork
from rankscope.paths.freeze import freeze as freeze
from rankscope.paths.marginals import Marginals as Marginals
from rankscope.paths.marginals import marginals as marginals
from rankscope.paths.marginals import pair_shares as pair_shares
from rankscope.paths.path import SKIP as SKIP
from rankscope.paths.path import Head as Head
from rankscope.paths.path import Path as Path
from rankscope.paths.path import Site as Site
from rankscope.paths.path import sites as sites
from rankscope.paths.spectrum import Spectrum as Spectrum
from rankscope.paths.spectrum import spectrum as spectrum
