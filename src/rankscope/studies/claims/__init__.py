"""Statements about rank collapse that can be run: of the papers and of our own, true and false ones."""

# Each file registers its claims when it is imported; they are listed in this order.
# isort: off
from rankscope.studies.claims import decomposition as decomposition
from rankscope.studies.claims import norms as norms
from rankscope.studies.claims import single_head as single_head
from rankscope.studies.claims import multi_head as multi_head
from rankscope.studies.claims import contraction as contraction
from rankscope.studies.claims import apriori as apriori
from rankscope.studies.claims import blocks as blocks
from rankscope.studies.claims import masked as masked
from rankscope.studies.claims import layer_norms as layer_norms
from rankscope.studies.claims import figures as figures

# isort: on
from rankscope.studies.claims.claim import CLAIMS as CLAIMS
from rankscope.studies.claims.claim import Claim as Claim
from rankscope.studies.claims.claim import Finding as Finding
from rankscope.studies.claims.claim import Number as Number
from rankscope.studies.claims.study import check_claims as check_claims

__all__ = ["CLAIMS", "Claim", "Finding", "Number", "check_claims"]
