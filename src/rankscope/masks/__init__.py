"""Mask rules, which keys a query may read, and the graphs they make. No torch here."""

from rankscope.masks.explicit import ExplicitMask as ExplicitMask
from rankscope.masks.explicit import FileMask as FileMask
from rankscope.masks.grammar import parse_mask as parse_mask
from rankscope.masks.graph import MaskGraph as MaskGraph
from rankscope.masks.picture import mask_chart as mask_chart
from rankscope.masks.rule import MASKS as MASKS
from rankscope.masks.rule import MaskKind as MaskKind
from rankscope.masks.rule import MaskRule as MaskRule
from rankscope.masks.rule import MaskUnion as MaskUnion
from rankscope.masks.rule import union as union
from rankscope.masks.rules import BigBird as BigBird
from rankscope.masks.rules import Blocks as Blocks
from rankscope.masks.rules import Causal as Causal
from rankscope.masks.rules import CausalWindow as CausalWindow
from rankscope.masks.rules import Dilated as Dilated
from rankscope.masks.rules import Full as Full
from rankscope.masks.rules import Longformer as Longformer
from rankscope.masks.rules import Prefix as Prefix
from rankscope.masks.rules import Strided as Strided
from rankscope.masks.rules import Window as Window
from rankscope.masks.summary import MaskSummary as MaskSummary
from rankscope.masks.summary import describe as describe
from rankscope.masks.summary import slem_words as slem_words
