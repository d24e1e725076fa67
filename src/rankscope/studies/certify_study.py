"""Certificates of a network on texts: what is proven of the residual of every layer, beside what is printed of it."""

from collections.abc import Callable, Iterator
from typing import Any

from rankscope.bounds.certify import certify as certificate_of
from rankscope.bounds.facts import facts_of
from rankscope.core.numerics import threads_for
from rankscope.errors import ConfigError
from rankscope.network import Spec
from rankscope.results import Table
from rankscope.sources.seen import Call
from rankscope.studies.ablate_config import feeding
from rankscope.studies.certify_config import CertifyConfig
from rankscope.studies.certify_explain import explained, norm_factors
from rankscope.studies.certify_found import lines_of
from rankscope.studies.certify_printed import printed_bounds
from rankscope.studies.certify_table import Found, table_of
from rankscope.studies.cuts import Cut, cuts
from rankscope.studies.inputs import Given
from rankscope.studies.subjects import Source, Subject, memory_words, subjects

Progress = Callable[[int, int | None], None]
"""Told after every text how many are through, and of how many if that is known."""


def certify(
    model: Source,
    texts: Any = None,
    *,
    images: Any = None,
    audio: Any = None,
    inputs: Any = None,
    call: Call | None = None,
    tokenizer: Any = None,
    config: CertifyConfig | None = None,
    load: dict[str, Any] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Table:
    """What is proven of the residual of every layer of a network, text by text.

    ``model`` is what ``ablate`` takes: a name, a folder, a live or translated model, a tree of parts (with ``inputs``,
    the tokens that enter it) or the ``Spec`` of a random network. ``options`` are fields of ``CertifyConfig``; ``load``
    are options of loading.

    One row per text, layer and definition. ``value`` is what the split pass measures. Beside the fixed columns there
    are ``lower``, ``measured``, ``upper``, ``trivial`` and ``bound`` (natural logarithms, null where nothing is proven;
    ``bound`` is the one that a paper prints, ``bound_name`` which, ``bound_proven`` whether its assumptions hold),
    ``vacuous``, ``lower_vacuous``, ``upper_vacuous``, ``bound_vacuous``, ``assumptions`` (what fails, first that of the
    printed bound), ``lower_by`` and ``upper_by`` (how the block's bound was found), ``gain_lower`` and ``gain_upper``
    (of the block alone), ``enclosed_lower`` and ``enclosed_upper`` (of the state as it was computed, rounding counted
    in), ``error`` (no computed token is further from the exact one) and ``tokens``.

    The section ``finding`` says it in words, ``certificate`` for every text, ``bounds`` holds the weakest bounds over
    all texts, ``explain`` the constants of every block on the first one.
    """
    if model is None:
        raise ConfigError("no model was given; give a name, a folder, a model, a tree of parts or a Spec")
    config = CertifyConfig.of(**options) if config is None else config
    given = {"texts": texts, "images": images, "audio": audio, "inputs": inputs, "call": call}
    asked = config.as_ablation(is_random=isinstance(model, Spec))
    found: list[Found] = []
    about: dict[str, Any] = {}
    notes = dict[str, None]()
    with memory_words("certificate", "lower --max-tokens"):
        for subject in subjects(
            model,
            feeding(asked, load or {}),
            Given(**given),
            seeds=asked.seeds,
            tokens=asked.tokens,
            tokenizer=tokenizer,
        ):
            about = about or subject.about
            cut = next(cuts(subject.network, asked, subject.kind))
            for one in _texts(subject, cut, config, is_first=not found):
                found.append(one)
                if progress is not None:
                    progress(len(found), None if subject.total is None else subject.total * len(config.seeds))
            notes |= dict.fromkeys(subject.notes())
    if not found:
        raise ConfigError("no text was given; a certificate needs at least one")
    return table_of(found, about, config, list(notes))


def _texts(subject: Subject, cut: Cut, config: CertifyConfig, *, is_first: bool) -> Iterator[Found]:
    """One text after the other, its padding cut out; constants are explained for the first text of all."""
    names = {"variant": cut.variant, "mask": cut.mask, "norm": cut.norm}
    about = {"model": subject.about["model"]} | names
    largest = max((parameter.numel() for parameter in subject.network.parameters()), default=0)
    with threads_for(largest):
        for fed in subject.feeds:
            for text in range(len(fed.x)):
                is_token, keep = fed.context.is_token, fed.keep
                x = fed.x[text] if is_token is None else fed.x[text][is_token[text]]
                context = fed.context.of_text(text)
                certificate = certificate_of(cut.network, x, context, joint_side=config.joint_side)
                facts = facts_of(cut.network, x, context, brackets=False)
                printed = printed_bounds(facts, config.definitions, config.gamma)
                lines = lines_of(certificate, printed, config.definitions, (x.shape[0], x.shape[1]))
                explain = []
                if is_first:
                    factors = norm_factors(cut.network, x, context)
                    explain = explained(facts, certificate, printed, lines, factors, config.gamma)
                yield Found(
                    about=about,
                    seed=subject.seed,
                    sample=fed.first + text,
                    tokens=len(x),
                    lines=lines,
                    explain=explain,
                    printed={name: one.words for name, one in printed.items()},
                    notes=certificate.notes,
                    left_out=0 if keep is None else len(x) - int(keep[text].sum()),
                )
                is_first = False
