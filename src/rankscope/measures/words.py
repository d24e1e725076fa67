"""Formulas and meanings of the definitions, in one line each, as users read them in lists and reports."""
# ruff: noqa: RUF001 - mathematical symbols are meant

from rankscope.core.refs import Ref
from rankscope.measures.residuals import BRACKETED

_NORM_FORMULAS = {
    "l1": "maxⱼ Σᵢ|Rᵢⱼ|",
    "linf": "maxᵢ Σⱼ|Rᵢⱼ|",
    "composite": "√(maxⱼ Σᵢ|Rᵢⱼ| · maxᵢ Σⱼ|Rᵢⱼ|)",
    "frobenius": "√(Σᵢⱼ Rᵢⱼ²)",
    "spectral": "σ₁(R)",
    "max": "maxᵢⱼ |Rᵢⱼ|",
}

_NORM_WORDS = {
    "l1": "largest column sum of absolute entries (over tokens)",
    "linf": "largest row sum of absolute entries (over features)",
    "composite": "composite norm (geometric mean of the largest column sum and the largest row sum of absolute "
    "entries)",
    "frobenius": "Frobenius norm (root of the sum of squares)",
    "spectral": "largest singular value",
    "max": "largest absolute entry",
}

_CENTER_FORMULAS = {
    "mean": "c = column means",
    "median": "c = column medians",
    "midrange": "c = column midranges (max + min)/2",
    "linf": "c = a minimizer of maxᵢ Σⱼ|Xᵢⱼ - cⱼ|",
    "best": "c = a minimizer of this norm",
}

_CENTER_WORDS = {
    "mean": "the mean token",
    "median": "the median of every channel",
    "midrange": "the midrange of every channel",
    "linf": "a token nearest to all tokens in l1, certified within 1% (not unique)",
    "best": "the best constant row for this norm",
}

REFS = {
    "residual_ratio[composite,mean]": Ref(
        key="dong2021",
        where="relative residual per layer, as plotted by the official code",
        differs="the text minimizes over the constant row, the figures subtract the mean",
    ),
    "residual_ratio[composite,best]": Ref(key="dong2021", where="res(X), relative to the norm of X"),
    "residual[composite,best]": Ref(key="dong2021", where="res(X)"),
    "residual[frobenius,mean]": Ref(key="wu2024", where="mu(X), the similarity of tokens"),
    "numerical_rank[absolute]": Ref(key="dong2021", where="rank printed by the official code, tolerance 0.5"),
    "effective_rank[entropy]": Ref(
        key="Roy, Vetterli. The effective rank: a measure of effective dimensionality. EUSIPCO 2007",
        where="definition",
    ),
    "dirichlet_energy": Ref(
        key="Rusch, Bronstein, Mishra. A survey on oversmoothing in graph neural networks. 2023, arXiv:2303.10993",
        where="equation 2",
    ),
    "mad": Ref(
        key="Chen et al. Measuring and relieving the over-smoothing problem for graph neural networks from the "
        "topological view. AAAI 2020, arXiv:1909.03211",
        where="MAD",
    ),
}

DIAMETER_FORMULAS = {
    "l1": "maxᵢⱼ Σₖ|xᵢₖ - xⱼₖ|",
    "l2": "maxᵢⱼ |xᵢ - xⱼ|₂",
    "linf": "maxᵢⱼₖ |xᵢₖ - xⱼₖ|",
}

COSINES = {
    "off_diagonal": (
        "Σᵢ≠ⱼ cos(xᵢ,xⱼ) / (n(n-1))",
        "mean cosine between two different tokens",
    ),
    "absolute": ("Σᵢ≠ⱼ |cos(xᵢ,xⱼ)| / (n(n-1))", "mean absolute cosine between two different tokens"),
    "with_diagonal": ("Σᵢⱼ cos(xᵢ,xⱼ) / n²", "mean cosine over all pairs, each token with itself included"),
}

NEIGHBOURS = {
    ("dirichlet_energy", "complete"): (
        "(1/n) Σᵢⱼ |xᵢ - xⱼ|₂²",
        "Dirichlet energy: squared distances of a token to all others, added up",
    ),
    ("dirichlet_energy", "path"): (
        "(2/n) Σᵢ |xᵢ₊₁ - xᵢ|₂²",
        "Dirichlet energy: squared distances of a token to the ones before and after it, added up",
    ),
    ("mad", "complete"): (
        "Σᵢ≠ⱼ (1 - cos(xᵢ,xⱼ)) / (n(n-1))",
        "MAD: mean cosine distance of a token to all others",
    ),
    ("mad", "path"): (
        "(1/n) Σᵢ mean(1 - cos(xᵢ,xⱼ), |i-j| = 1)",
        "MAD: mean cosine distance of a token to the ones before and after it",
    ),
}

SPECTRA = {
    ("effective_rank", "entropy"): (
        "exp(-Σ p log p), p = σ/Σσ",
        "directions in use, by the entropy of the singular values",
    ),
    ("effective_rank", "eigenvalues"): (
        "exp(-Σ p log p), p = σ²/Σσ²",
        "directions in use, by the entropy of the squared singular values",
    ),
    ("stable_rank", "frobenius"): ("Σσ² / σ₁²", "energy of all directions over that of the strongest"),
    ("participation_ratio", "eigenvalues"): ("(Σσ²)² / Σσ⁴", "directions that share the energy"),
    ("numerical_rank", "relative"): (
        "#{k : σₖ > 0.001 σ₁}",
        "singular values above a thousandth of the largest",
    ),
    ("numerical_rank", "absolute"): ("#{k : σₖ > 0.5}", "singular values above 0.5"),
    ("smallest_singular_value", "absolute"): (
        "σ_r, r the largest rank possible",
        "strength of the weakest direction",
    ),
    ("smallest_singular_value", "ratio"): (
        "σ_r / σ₁, r the largest rank possible",
        "strength of the weakest direction over that of the strongest",
    ),
    ("distance_to_rank_one", "frobenius"): (
        "√(Σ σₖ², k ≥ 2)",
        "distance to the nearest matrix of rank one",
    ),
    ("distance_to_rank_one", "ratio"): (
        "√(Σ σₖ², k ≥ 2) / √(Σ σₖ²)",
        "distance to the nearest matrix of rank one, relative to the norm",
    ),
}

SHARES = {
    "token_share": ("maxᵢ |xᵢ|₂² / Σᵢ|xᵢ|₂²", "share of the energy in the largest token"),
    "channel_share": ("maxⱼ Σᵢ xᵢⱼ² / Σᵢⱼ xᵢⱼ²", "share of the energy in the largest channel"),
    "outlier_tokens": ("#{i : |xᵢ|₂ > 10 medianₖ|xₖ|₂}", "tokens longer than ten median tokens"),
}

MASSIVE = {
    "massive_tokens[5x_others]": (
        "max {k < n/2 : |x₍ₖ₎|₂ ≥ 5 √(Σᵢ>ₖ |x₍ᵢ₎|₂² / (n-k))}, x₍₁₎ the longest token",
        "massive tokens: each at least five times as long as the tokens that are not",
    ),
    "token_share[massive]": (
        "Σᵢ≤ₖ |x₍ᵢ₎|₂² / Σᵢ|xᵢ|₂², k massive tokens",
        "share of the energy in the massive tokens",
    ),
    "residual_ratio[frobenius,mean,unit,others]": (
        "‖R‖/‖U‖, R = U - 1cᵀ, U = xᵢ/|xᵢ|₂ of the tokens that are not massive, c = column means",
        "Frobenius norm of the tokens minus the mean token, relative to that of the tokens; without the massive "
        "ones, tokens first scaled to length one (none may be zero)",
    ),
    "massive_channels[5x_others,unit]": (
        "max {k < d/2 : u₍ₖ₎ ≥ 5 √(Σⱼ>ₖ u₍ⱼ₎² / (d-k))}, uⱼ² = Σᵢ xᵢⱼ²/|xᵢ|₂², u₍₁₎ the largest of d that are not 0; "
        "1 if that is 0 and u₍₁₎² ≥ Σⱼ uⱼ²/2",
        "massive channels of tokens scaled to length one: each at least five times as long as the channels that are "
        "not, or one with half of the energy",
    ),
    "channel_share[massive,unit]": (
        "Σⱼ≤ₖ u₍ⱼ₎² / Σⱼ uⱼ², uⱼ² = Σᵢ xᵢⱼ²/|xᵢ|₂², k massive channels",
        "share of the energy in the massive channels, tokens first scaled to length one",
    ),
    "residual_ratio[frobenius,mean,unit,other_channels]": (
        "‖R‖/‖U‖, R = U - 1cᵀ, U = xᵢ/|xᵢ|₂ without the massive channels, c = column means",
        "Frobenius norm of the tokens minus the mean token, relative to that of the tokens; without the massive "
        "channels, tokens scaled to length one after that (none may be zero)",
    ),
}

MAPS = {
    ("attention_entropy", "mean"): ("-(1/n) Σᵢₖ Aᵢₖ log Aᵢₖ", "mean entropy of a query's attention, in nats"),
    ("attention_entropy", "normalized"): (
        "-(1/n) Σᵢₖ Aᵢₖ log Aᵢₖ / log(keys)",
        "mean entropy of a query's attention, 1 if uniform over all keys",
    ),
    ("dobrushin", "map"): (
        "½ maxᵢⱼ Σₖ|Aᵢₖ - Aⱼₖ|",
        "factor by which averaging shrinks every token diameter at least",
    ),
    ("doeblin", "map"): ("1 - Σₖ minᵢ Aᵢₖ", "attention that is not shared by all queries"),
    ("spectral_gap", "map"): ("1 - |λ₂(A)|", "one minus the second largest eigenvalue modulus"),
    ("sink_share", "map"): ("maxₖ (1/n) Σᵢ Aᵢₖ", "share of all attention that the largest sink receives"),
}


def residual_formula(norm: str, center: str) -> str:
    return f"{_NORM_FORMULAS[norm]}, R = X - 1cᵀ, {_CENTER_FORMULAS[center]}"


def ratio_formula(norm: str, center: str) -> str:
    return f"‖R‖/‖X‖, ‖R‖ = {_NORM_FORMULAS[norm]}, R = X - 1cᵀ, {_CENTER_FORMULAS[center]}"


def residual_meaning(norm: str, center: str) -> str:
    return f"{_NORM_WORDS[norm]} of the tokens minus {_CENTER_WORDS[center]}{_bracket(norm, center)}"


def ratio_meaning(norm: str, center: str) -> str:
    return f"{residual_meaning(norm, center)}, relative to the same norm of the tokens"


def _bracket(norm: str, center: str) -> str:
    return ", as a certified bracket" if (norm, center) in BRACKETED else ""
