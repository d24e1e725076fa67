"""What rows of inputs amount to, as typed values: the names, where one ends and the next begins, and what is said."""

from typing import Literal, get_args

from pydantic import Field

from rankscope.core.config import Config
from rankscope.findings.base import Number, Value

InputsName = Literal[
    "collapsed",
    "massive channel",
    "clusters",
    "dimensional",
    "shared mean",
    "cone",
    "too few",
    "healthy",
]
INPUT_NAMES: tuple[InputsName, ...] = get_args(InputsName)


class InputThresholds(Config):
    """Where one word about rows of inputs ends and the next begins. Most are those of the tokens of one text."""

    equal: float = Field(
        default=0.01,
        gt=0,
        lt=1,
        description="rows are equal when their residual ratio is at most this: the mean is a hundred times the spread",
    )
    nearly_equal: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="and at most this, when their differences use few directions besides",
    )
    cone_cosine: float = Field(
        default=0.75,
        gt=0,
        lt=1,
        description="from this mean cosine on rows share a direction: their mean is 1.7 times their spread",
    )
    bound: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="rows that share a direction are a cone if what they are along it and across it is correlated at "
        "least this much (ranks), else a cloud around a shared mean",
    )
    low_rank: float = Field(
        default=0.2,
        gt=0,
        lt=1,
        description="few directions: the effective rank is at most this share of that of Gaussian rows",
    )
    rest: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="or the spectrum has a cliff, after which directions hold at most this share of what they hold of "
        "Gaussian rows",
    )
    cliff: float = Field(
        default=3.0,
        gt=1,
        description="and the step between two singular values there is so many times that of Gaussian rows",
    )
    massive_channel: float = Field(
        default=0.5, gt=0, lt=1, description="massive channels hold this share of the squares together"
    )
    massive_length: float = Field(
        default=5.0, gt=1, description="and are so many times larger than others (root mean square)"
    )
    silhouette: float = Field(
        default=0.5, gt=0, lt=1, description="clusters have at least this mean silhouette"
    )
    tight: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="and hold at most this share of the squares that as many groups of Gaussian rows hold inside",
    )
    long_row: float = Field(
        default=10.0,
        gt=1,
        description="rows so many times farther from the center than 95 percent of all are set aside",
    )
    equal_rows: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="rows are also collapsed when so large a share of them is one and the same",
    )
    least_rows: int = Field(
        default=16,
        ge=4,
        description="fewer rows are too few to be called healthy, or to tell a cone from a mean",
    )


class InputsVerdict(Value):
    """What rows of inputs show, and the numbers that say so."""

    name: InputsName
    """The name."""

    also: tuple[InputsName, ...] = ()
    """Other names that hold."""

    directions: int | None = None
    """How many directions rows use, where they are few."""

    clusters: int | None = None
    """How many groups rows form, where they do."""

    channels: tuple[int, ...] = ()
    """Massive channels, counted from 0. Everything but the ratio and the cosine is then said of the other channels."""

    ratio: Number = None
    """Residual ratio: the norm of the rows minus their mean over that of the rows; 0 if all are equal."""

    cosine: Number = None
    """Mean cosine of two different rows."""

    rank: Number = None
    """Effective rank of the rows around their center, with the longer half cut to the median length."""

    expected_rank: Number = None
    """The same of Gaussian rows."""

    long_rows: int = 0
    """Rows that are far longer than all others; they are set aside for the verdict."""

    near_duplicates: Number = None
    """Share of rows that have a near-duplicate."""

    equal_rows: Number = None
    """Share of rows that equal the most frequent one."""
