"""The numbers the verdict turns on, each with its reason; all can be set."""

from pydantic import Field

from rankscope.core.config import Config


class Thresholds(Config):
    """Where one word ends and the next begins. ``docs/verdict.md`` shows the models they were held against."""

    collapsed: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="tokens are equal when the residual ratio of unit tokens is at most this (mean cosine .99); "
        "trained models that work stay above .5, a random post-norm network passes it at layer 10",
    )
    fall: float = Field(
        default=3.0,
        gt=1,
        description="collapse is a fall with depth: the ratio must have been so many times larger in an earlier layer",
    )
    massive_share: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="massive tokens name a layer if they hold at least this share of the energy together",
    )
    massive_length: float = Field(
        default=5.0,
        gt=1,
        description="and are so many times longer than the others (root mean square); less than 5 changes nothing, "
        "since only tokens five times longer are counted",
    )
    massive_channel: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="massive channels, one or several together, hold this share of the energy of unit tokens",
    )
    distinct: float = Field(
        default=0.3,
        gt=0,
        lt=1,
        description="tokens are distinct without massive channels if their ratio is then at least this",
    )
    offset_cosine: float = Field(
        default=0.97,
        gt=0,
        lt=1,
        description="from this mean cosine on one shared row outweighs all differences",
    )
    cone_cosine: float = Field(
        default=0.75,
        gt=0,
        lt=1,
        description="from this mean cosine on tokens share a direction; 8 random pre-norm layers reach .63",
    )
    low_rank: float = Field(
        default=0.2,
        gt=0,
        lt=1,
        description="few directions: the effective rank is below this share of what tokens and width allow",
    )
    grouped: float = Field(
        default=0.4,
        gt=0,
        description="few directions are clusters if mean cosine times effective rank exceeds this: k groups have a "
        "cosine of 1/k and rank k, distinct tokens in few directions have a cosine near 0",
    )
    lost_by_centering: float = Field(
        default=0.7,
        gt=0,
        lt=1,
        description="and if centering costs at least this much effective rank: exact groups lose one, a trained "
        "character model whose letters fall into soft groups loses .6",
    )
    coverage: float = Field(
        default=0.2, gt=0, le=1, description="share of layers a confounder must hold to name the whole stack"
    )
