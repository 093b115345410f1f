"""The chat's screen: what can be done there, and what the messages of its widgets and the keys do at once."""

from __future__ import annotations

from collections.abc import Mapping

from textual import on
from textual.app import SuspendNotSupported
from textual.events import Key

from specchat.errors import SpecchatError, UsageError, cut
from specchat.store.prompt_history import History
from specchat.tui.screens.alternatives import AlternativesScreen
from specchat.tui.screens.chat_view import ChatView
from specchat.tui.screens.context_limit import ContextLimit, put_back
from specchat.tui.screens.current_chat import CurrentChat
from specchat.tui.screens.engine_events import EngineEvents
from specchat.tui.screens.learning import LearningCommand
from specchat.tui.screens.lessons import Lessons
from specchat.tui.screens.pairs import PairsScreen
from specchat.tui.screens.replies import Replies
from specchat.tui.screens.search import SearchScreen
from specchat.tui.screens.show_mode import ShowMode
from specchat.tui.screens.side_panel import SidePanel
from specchat.tui.screens.trainings import Trainings
from specchat.tui.screens.what_if import WhatIfs
from specchat.tui.services.context import AppServices
from specchat.tui.state.turn import Turn
from specchat.tui.system import desktop
from specchat.tui.tree.alternatives import Alternative, Fork, emitted_by, fork_at, fork_at_node
from specchat.tui.tree.picture import END_OF_REPLY, label
from specchat.tui.widgets.transcript import Transcript
from specchat.tui.widgets.tree_panel import TreePanel
from specchat.tui.widgets.welcome import SHOW


class ChatScreen(ChatView):
    """What takes a while is done in the app's own turn, one after another; this screen handles the rest."""

    def __init__(self, context: AppServices, history: History | None, commands: Mapping[str, tuple[str, str]]) -> None:
        super().__init__(context, history, commands)
        self.side_panel = SidePanel(self)
        self.replies = Replies(self)
        self.context_limit = ContextLimit(self, self.replies)
        self.current_chat = CurrentChat(self, self.context_limit)
        self.show_mode = ShowMode(self, self.side_panel, self.replies)
        self.trainings = Trainings(self)
        self.learning = LearningCommand(context)
        self.what_ifs, self.lessons = WhatIfs(self), Lessons(self)
        asking = self.what_ifs, self.lessons
        self.events = EngineEvents(self, self.side_panel, self.context_limit, self.current_chat, self.learning, asking)

    def draw(self) -> None:
        """Update everything whose content may have changed; cheap where nothing has."""
        self.trainings.update()
        self.side_panel.update_fields()
        super().draw()
        self.what_ifs.update()

    def show_player(self) -> None:
        """Show a recording's controls in place of the prompt, or the prompt, which must take no key while hidden."""
        player = self.context.session.player
        self.set_class(player is not None, "-replay")
        self.replay_bar.show(player)
        self.prompt.can_focus = player is None
        self.focus_chat()

    def choose_pair(self) -> None:
        chat, pairs, app = self.chat, self.context.pairs, self.context.app
        chat.background.fetched = ""
        held = chat.engine.ready.memory_bytes if chat.engine.ready else 0

        async def chosen(name: str | None) -> None:
            if name:
                await app.attempt(pairs.choose(name))

        figures = chat.figures if chat.written_with == chat.engine.pair else None
        speedup = figures.speedup if figures else None
        plain = figures.tokens_per_s / speedup.value if figures and speedup and speedup.value else 0.0
        app.push_screen(PairsScreen(pairs, chat.engine.pair, held, chat.written_with, plain), chosen)

    async def ask_question(self, question: str) -> None:
        """Send a question of the empty page as if it had been typed; the text in the prompt stays there."""
        if question.startswith(SHOW):
            await self.show_mode.enter(question.removeprefix(SHOW))
            self.prompt.sent.add(question)
        else:
            await self.context_limit.ask(question, lambda: self.prompt.sent.add(question))

    def hold(self) -> None:
        """Hold the rounds, or let them go on; the tree then follows them again."""
        self.context.speed.hold()
        if not self.context.speed.halted:
            self.tree_panel.action_leave()

    def step(self, rounds: int = 1) -> None:
        self.context.speed.step(rounds)
        self.tree_panel.action_leave()

    def recall_queued(self) -> bool:
        """Move the queued message back into an empty prompt; False if there is none."""
        if self.chat.queued is None or self.prompt.text:
            return False
        text, self.chat.queued = self.chat.queued, None
        put_back(text, self)
        self.queued_message.update()
        return True

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The speed has keys while a reply or recording runs, and the focused widget leaves them to it."""
        if action != "pace":
            return True
        what, player, focused = parameters[0], self.context.session.player, self.app.focused
        if focused is not None and not focused.has_class("-paces"):
            return False
        if what == "rewind":
            return player is not None
        return what in ("slower", "faster") or player is not None or self.chat.running is not None

    async def action_pace(self, what: str) -> None:
        with self.context.app.saying_why():
            match what:
                case "hold":
                    self.hold()
                case "step":
                    self.step()
                case "slower" | "faster":
                    self.context.speed.change_by(1 if what == "slower" else -1)
                case "rewind" if self.context.session.player is not None:
                    await self.current_chat.begin()
                    self.context.speed.rewind()

    async def action_stop(self) -> None:
        """Leave a replay, take back the queued message, or stop what runs; else focus the prompt and the chat's end."""
        session, limit = self.context.session, self.context_limit
        if self.prompt.close_menu():
            return
        if session.player is not None:
            await self.current_chat.leave_replay()
            self.side_panel.show_fields()
        elif self.chat.editing is not None:
            self.replies.leave_edit()
        elif self.choice or limit.waiting:
            await limit.answered("back")
        elif not self.recall_queued() and not await self.start_pages.leave_tour() and not session.stop():
            self.context.app.say("")
            if self.transcript.leave_token():
                return
            self.show_mode.leave()
            self.set_class(False, "-tree-alone")  # the chat again, where the tree replaced it
            self.side_panel.look_at(None)
            self.transcript.follow()
            self.prompt.focus()

    def action_search(self) -> None:
        if self._refused_by_recording():
            return

        def chosen(text: str | None) -> None:
            if text is not None:
                self.prompt.write(text)
            self.prompt.focus()

        self.context.app.push_screen(SearchScreen(self.prompt.sent), chosen)

    def action_open_editor(self) -> None:
        if self._refused_by_recording():
            return
        app = self.context.app
        try:
            command = desktop.editor_command()
            with app.suspend():
                text = desktop.edit_text(self.prompt.full_text, command)
        except SuspendNotSupported:
            app.say("the app cannot make room for an editor here", "warn")
        except SpecchatError as error:
            app.say(str(error), "warn")
        else:
            self.prompt.write(text)
            app.say("")
        app.refresh(layout=True)
        self.prompt.focus()

    def write_typed(self, event: Key) -> bool:
        """Write a character into the prompt that was typed in the chat or at a button and is not a key there.

        The focus has moved when this returns: characters that follow at once are no keys of the chat. False for other
        keys, and for those that come back from a widget.
        """
        focused, character = self.focused, event.character or ""
        in_chat = focused is not None and focused.has_class("-paces") and self.context.session.player is None
        # A blank is a key in the chat, also where it has no effect.
        typed = character if self.alert.has_focus_within else character.strip() if in_chat else ""
        if event.is_forwarded or not typed or not typed.isprintable() or event.key in self.active_bindings:
            return False
        self.set_focus(self.prompt)
        self.prompt.insert(character)
        return True

    def on_prompt_taken_back(self) -> None:
        self.recall_queued()

    def on_prompt_moved_on(self) -> None:
        if self.choice and self.alert.display:
            self.alert.take_focus()
        else:
            self.focus_next()

    def on_settings_form_left(self) -> None:
        self.side_panel.toggle_settings()

    def on_transcript_pointed(self, event: Transcript.Pointed) -> None:
        self.side_panel.look_at(event.turn)

    @on(TreePanel.FollowAsked)
    def _look_at_newest(self) -> None:
        self.side_panel.look_at(None)

    def on_transcript_token_pointed(self, event: Transcript.TokenPointed) -> None:
        """Say what token the keys point at, or open its place."""
        view, place = event.view, event.view.fork_place
        if place is None:
            return
        if event.entered:
            self.open_fork(view.turn, fork_at(view.emitted, place))
            return
        one = view.emitted[place]
        known = {"drafted": "guessed, and kept", "given": "there before the model went on"}
        who = known.get(one.origin, "the target's own")
        opens = self.context.app.key_hint("transcript.alternatives", "shows what else it could be", " · ")
        reply, last = view.turn.reply, len(view.emitted)
        ended = not one.text and place + 1 == last and reply is not None and reply.stop == "end"
        said = END_OF_REPLY if ended else label(one.text, self.context.marks, 30)
        self.context.app.say(f"token {place + 1:,} of {last:,}: {said} · {who}{opens}")

    def on_tree_panel_entered(self, event: TreePanel.Entered) -> None:
        """Open the place of a node of the reply that the tree belongs to."""
        reply = None if self.chat.visible.served else self.chat.shown_rounds.reply
        turn = next((turn for turn in self.chat.turns if turn.reply is reply and reply is not None), None)
        fork = None if turn is None or reply is None else fork_at_node(emitted_by(reply), event.round, event.node)
        if turn is None:
            self.context.app.say("this reply is another program's", "warn")
        elif fork is None:
            self.context.app.say("this token is the end of the prompt: the reply begins behind it")
        else:
            self.open_fork(turn, fork)

    def on_tree_panel_what_if_asked(self, event: TreePanel.WhatIfAsked) -> None:
        with self.context.app.saying_why():
            self.what_ifs.open({}, event.round)

    def open_fork(self, turn: Turn, fork: Fork) -> None:
        """Show what else could stand at a place of a reply, and go on from what the user chooses there."""
        page = AlternativesScreen(self.context, turn, fork)

        async def chosen(alternative: Alternative | None) -> None:
            if alternative is not None:
                await self.context.app.attempt(self.replies.branch_from(turn, page.fork, alternative))

        self.context.app.push_screen(page, chosen)

    async def find(self, words: str) -> None:
        """Point at a message with these words; without words, look for the last ones again."""
        if not self.transcript.views:
            raise UsageError("there is no message yet to look through")
        if not words and not self.transcript.sought:
            raise UsageError("/find wants words to look for: /find lighthouse")
        self.transcript.focus()
        await self.transcript.find(words or self.transcript.sought)

    def on_transcript_found(self, event: Transcript.Found) -> None:
        words = repr(cut(event.words, 40))
        if event.count:
            again = self.context.app.key_hint("transcript.find_again", "finds the one before", " · ")
            self.context.app.say(f"message {event.number} of {event.count} with {words}{again}")
        else:
            self.prompt.focus()
            elsewhere = f"/chats {cut(event.words, 40)} looks in all chats"
            self.context.app.say(f"no message here has {words}; {elsewhere}", "warn")

    def on_transcript_copy_asked(self, event: Transcript.CopyAsked) -> None:
        if event.text:
            self.context.app.copy_to_clipboard(event.text, event.what)
        else:
            self.context.app.say(f"there is no {event.what} to copy")

    @on(Transcript.Shortened)
    def _collect_what_left(self) -> None:
        self.context.garbage.schedule()

    def on_transcript_edit_asked(self, event: Transcript.EditAsked) -> None:
        self.replies.edit(event.turn, reply=event.reply)

    def _refused_by_recording(self) -> bool:
        """Whether a recording hides the prompt, which must not change unseen; a remark says so."""
        if self.chat.background.replaying:
            self.context.app.say(self.context.app.recording_reason, "warn")
        return self.chat.background.replaying
