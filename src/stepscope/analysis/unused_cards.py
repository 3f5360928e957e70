"""Graphics cards that were read beside the training and that it did not use, by their PCI address and UUID."""

from __future__ import annotations

from stepscope.analysis.process_scopes import has_several_processes
from stepscope.analysis.result_cache import cached_per_run
from stepscope.runfolder import RunReader

_READ_BY = ("nvml", "amdsmi")  # cards that torch calls cuda; of others device.json says nothing


def card_of(scope: str) -> str:
    """The scope of the card that a scope lies in: gpu:0 of gpu:0/memory."""
    return scope.partition("/")[0]


@cached_per_run
def unused_cards(run: RunReader) -> tuple[frozenset[str], str | None]:
    """Return the scopes of cards that the training did not use, and a sentence where only their number is known.

    A card counts as used unless every card that was used is recognised among the others.
    """
    cards: dict[str, set[str]] = {}
    for channel in run.channels:
        scope = str(channel.get("scope"))
        if scope.startswith("gpu:") and str(channel.get("sensor")).startswith(_READ_BY):
            signs = cards.setdefault(card_of(scope), {card_of(scope).removeprefix("gpu:")})
            signs.update(str(channel.get("card") or "").split())
    if run.meta.get("simulated") is not None:
        return frozenset(), None
    if has_several_processes(run):
        count = 1 + len(run.part_folders)
        return frozenset(), _unknown_cards_sentence(len(cards), f"{count} processes trained") if len(
            cards
        ) > count else None
    used = _cards_used(run)
    if used is None:
        return frozenset(), None
    matches = [{scope for scope, signs in cards.items() if signs & stated} for stated in used]
    if all(matches):
        return frozenset(cards.keys() - set().union(*matches)), None
    sentence = _unknown_cards_sentence(len(cards), f"the training used {len(used)}") if len(used) < len(cards) else None
    return frozenset(), sentence


def is_of_unused_card(run: RunReader, scope: str) -> bool:
    """Return whether a scope is that of a card that the training did not use, or lies in one."""
    return card_of(scope) in unused_cards(run)[0]


def _unknown_cards_sentence(cards: int, used: str) -> str:
    return f"{cards} GPUs were read, and {used}: which ones were used is not known, so that all count as its own"


def _cards_used(run: RunReader) -> list[set[str]] | None:
    """What tells each card that torch used; None where the run does not say: it was killed, or is not torch's."""
    stated = run.device.get("accelerators_torch")
    if run.framework != "torch" or "at_end" not in run.device or not isinstance(stated, list):
        return None
    cards = [card for card in stated if isinstance(card, dict) and card.get("used") is not False]
    return [set(str(card.get("card") or "").split()) for card in cards]
