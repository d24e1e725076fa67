"""Statements about rank collapse that can be run: of the papers and of our own, true and false ones."""

# Each file registers its claims when it is imported; they are listed in this order.
# isort: off
from rankscope.papers.claims import decomposition as decomposition
from rankscope.papers.claims import norms as norms
from rankscope.papers.claims import single_head as single_head
from rankscope.papers.claims import multi_head as multi_head
from rankscope.papers.claims import contraction as contraction
from rankscope.papers.claims import apriori as apriori
from rankscope.papers.claims import blocks as blocks
from rankscope.papers.claims import masked as masked
from rankscope.papers.claims import layer_norms as layer_norms
from rankscope.papers.claims import other_layers as other_layers
from rankscope.papers.claims import figures as figures

# isort: on
from rankscope.papers.claims.claim import CLAIMS as CLAIMS
from rankscope.papers.claims.claim import Claim as Claim
from rankscope.papers.claims.claim import ClaimOutcome as ClaimOutcome
from rankscope.papers.claims.claim import ComparedNumber as ComparedNumber
from rankscope.papers.claims.study import check_claims as check_claims
from rankscope.papers.claims.study import claims as claims

__all__ = ["CLAIMS", "Claim", "ClaimOutcome", "ComparedNumber", "check_claims", "claims"]
