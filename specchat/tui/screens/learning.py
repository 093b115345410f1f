"""Lets the drafter learn from replies, says what it has learnt, and lets it forget."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine.protocol import commands
from specchat.engine.protocol.events import Learnt
from specchat.engine.protocol.text import visible
from specchat.errors import UsageError, nearest
from specchat.tui.services.context import AppServices
from specchat.tui.text import numbers

_WORDS = ("on", "off", "forget")


class LearningCommand:
    """Sends what the user wants learnt to the engine, keeps the setting, and notes the answers in the chat."""

    def __init__(self, context: AppServices) -> None:
        self._app, self._chat, self._session = context.app, context.chat, context.session
        self._files = context.settings_files
        self._asked: list[str] = []  # what each answer that is to come is about

    async def run(self, argument: str) -> None:
        """What follows `/learn`.

        Raises:
            UsageError: the argument is unknown, or no pair is ready.
            ConfigError: the setting cannot be kept.
        """
        if self._chat.engine.phase != "ready" or self._session.player is not None:
            raise UsageError("no pair is ready whose drafter could learn")
        match argument:
            case "":
                self._ask("report")
            case "on" | "off":
                self._session.change("learn", argument == "on")
                self._ask(argument)
                self._files.keep("learn", argument == "on")
            case "forget":
                raise UsageError("this erases what the drafter has learnt and the replies it keeps: /learn forget yes")
            case "forget yes":
                self._ask("forget", forget=True)
            case _:
                raise UsageError(f"/learn does not know {argument!r}{nearest(argument, _WORDS)}")

    async def answered(self, learnt: Learnt) -> None:
        about = self._asked.pop(0) if self._asked else "report"
        await self._app.note(visible(_note(about, learnt)))

    def failed(self) -> None:
        self._asked.clear()

    def _ask(self, about: str, forget: bool = False) -> None:
        if self._session.send(commands.Learning(forget)):
            self._asked.append(about)


def _note(about: str, learnt: Learnt) -> str:
    match about:
        case "on" if learnt.drafter:
            privacy = PRIVACY.format(most=numbers.size(learnt.most_bytes))
            return f"{learnt.drafter} learns while the engine is idle: {privacy}"
        case "off":
            return "nothing more is learnt or kept; what was learnt stays in use until /learn forget"
        case "forget" if learnt.drafter:
            return f"{learnt.drafter} has forgotten what it learnt: {numbers.size(learnt.freed_bytes)} are erased"
        case _:
            return learning_report(learnt)


PRIVACY = (
    "replies from now on are kept to learn from, as their tokens and states of the model: only on the machine of the "
    "engine, at most {most}. /learn forget erases them; while /learn is off nothing is kept"
)


def learning_report(learnt: Learnt) -> str:
    if not learnt.drafter:
        return f"nothing is learnt: {learnt.why}"
    state = "learns from your replies" if learnt.learning else "is not learning; /learn on starts it"
    amount = "it has learnt nothing yet"
    if learnt.replies:
        replies = "1 reply" if learnt.replies == 1 else f"{learnt.replies:,} replies"
        updates = "1 update" if learnt.updates == 1 else f"{learnt.updates:,} updates"
        amount = f"learnt from {replies} of {numbers.tokens(learnt.tokens)}, in {updates}"
    lines = [f"{learnt.drafter} {state}", amount]
    if learnt.chains:
        lines.append(_comparison(learnt))
    if learnt.went_back:
        times = "once" if learnt.went_back == 1 else f"{learnt.went_back} times"
        lines.append(f"it went back to its original weights {times}, because it did worse than they")
    if learnt.disk_bytes:
        lines.append(f"{numbers.size(learnt.disk_bytes)} on the disk; /learn forget erases it")
    return "\n".join(["; ".join(lines), *_each_reply(learnt)])


def _comparison(learnt: Learnt) -> str:
    """Both networks on the same text, before it was learnt from: shares right at each depth, and tokens a round."""
    both, depths = (learnt.before, learnt.now), len(learnt.before)
    before, now = (_percent(learnt.chains, right) for right in both)
    lengths = [1 + sum(right) / learnt.chains for right in both]
    return (
        f"tried at {learnt.chains:,} places of replies before it learnt from them: guesses "
        f"{', '.join(map(str, range(1, depths + 1)))} tokens ahead were right {before} % of the time with its first "
        f"weights, {now} % with those of that moment; tokens a round in lines of {depths}: "
        f"{lengths[0]:.2f} → {lengths[1]:.2f}"
    )


def _each_reply(learnt: Learnt) -> list[str]:
    """The last replies one by one, and some guesses of the newest that learning changed."""
    if not learnt.judged:
        return []
    lengths = [[1 + right / max(1, one.chains) for right in (one.before, one.now)] for one in learnt.judged]
    newest = learnt.judged[-1]
    all_of_them = (
        "reply by reply, the oldest first, each before it learnt from it: tokens a round in lines of "
        f"{max(1, len(learnt.before))}, with the first weights → with those that the replies before had left: "
        f"{', '.join(f'{before:.2f} → {now:.2f}' for before, now in lengths)}"
    )
    if not newest.updates:
        return [all_of_them, "nothing had been learnt yet when the newest reply was measured"]
    became = (
        f"in the newest reply, of {newest.chains:,} first guesses {newest.became_right:,} became right by learning, "
        f"and {newest.became_wrong:,} wrong"
    )
    changed = (
        f"token {one.place:,}, after {one.behind!r}: it would have guessed {one.before!r}, and now guessed "
        f"{one.now!r}; the target wrote {one.wrote!r}"
        for one in newest.changed
    )
    return [all_of_them, became, *changed]


def _percent(chains: int, right: Sequence[int]) -> str:
    """The share that was right at each depth, of those that were right so far."""
    return ", ".join(f"{100 * now / max(1, before):.0f}" for before, now in zip([chains, *right], right, strict=False))
