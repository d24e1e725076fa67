"""Laws: what a measure promises. A measure declares them; one test holds every measure to every law it declares."""

from enum import StrEnum


class Law(StrEnum):
    """A promise of a measure m, as one line in words. A bracket keeps a law if the two brackets overlap."""

    BATCH = "a batch is measured one matrix at a time"
    TOKEN_ORDER = "the order of tokens does not matter (of a map: of queries and keys together)"  # noqa: S105 - not a password
    CHANNEL_ORDER = "the order and the sign of channels do not matter"
    ZERO_CHANNELS = "channels that are zero for every token do not matter"
    HOMOGENEOUS = "m(c X) = |c| m(X)"
    SCALE_INVARIANT = "m(c X) = m(X) for c != 0"
    TOKEN_SCALE_INVARIANT = "scaling every token by a positive factor of its own does not matter"  # noqa: S105 - not a password
    SHIFT_INVARIANT = "adding the same row to every token does not matter"
    ROTATION_INVARIANT = "m(X Q) = m(X) for orthogonal Q"
    ZERO_AT_CONSENSUS = "m(X) = 0 if all rows are equal"
    CONTRACTS = "m(P X) <= dobrushin(P) m(X) for every P whose rows are probabilities"
    NOT_NEGATIVE = "m(X) >= 0"
    AT_MOST_ONE = "m(X) <= 1"
    AT_LEAST_ONE = "m(X) >= 1"
