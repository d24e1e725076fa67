"""What a measure promises: laws, and what its floor covers. One test holds every measure to all that it declares."""

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


class Covers(StrEnum):
    """Errors E of a state X that move a measure by no more than its floor, ``relative`` being what it is asked for."""

    STATE = "any error with |E| <= relative |X| in the Frobenius norm"
    SAME_NORM = (
        "any error with |E| <= relative |X| and |E - 1 mean(E)| <= relative |X| in the norm of the residual "
        "(composite: in column sums and in row sums)"
    )
    TOKENS = "any error that moves no token by more than relative of its own length"
    SAME_CHANNELS = (
        "any error that moves no token by more than relative of its own length, and no channel in or out"
    )
    UNIT_NORM = (
        "any error that moves the tokens at unit length as same norm says, by 2 sin(asin(relative) / 2) of it"
    )
    MAP = "any error with |E| <= relative |A| in the Frobenius norm that keeps rows probabilities and masks zero"
