"""The residual of one path through attention layers, with skips or without, in 150 digits. Imports nothing of ours."""

import mpmath


def path_residual(x, layers, heads, path, skip=True):
    """``|J Z|`` of the term Z of ``path``; a layer is (query, key, value, out) as nested lists, dim x dim each."""
    with mpmath.workdps(150):
        state = mpmath.matrix(x)
        term = mpmath.matrix(x)
        width = state.cols // heads
        for (query, key, value, out), taken in zip(layers, path, strict=True):
            after = state.copy() if skip else mpmath.zeros(state.rows, state.cols)
            queries, keys = state * mpmath.matrix(query), state * mpmath.matrix(key)
            for head in range(heads):
                cut = slice(head * width, (head + 1) * width)
                logits = queries[:, cut] * keys[:, cut].T / mpmath.sqrt(width)
                rows = [[mpmath.exp(logits[i, j]) for j in range(state.rows)] for i in range(state.rows)]
                mixing = mpmath.matrix([[entry / sum(row) for entry in row] for row in rows])
                product = mpmath.matrix(value)[:, cut] * mpmath.matrix(out)[cut, :]
                after += mixing * state * product
                if taken == head:
                    term = mixing * term * product
            state = after
        means = [sum(term[i, c] for i in range(term.rows)) / term.rows for c in range(term.cols)]
        squares = [(term[i, c] - means[c]) ** 2 for i in range(term.rows) for c in range(term.cols)]
        return float(mpmath.sqrt(sum(squares)))
