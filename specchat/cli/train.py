"""`specchat train`: a drafter for a pair's target, from nothing to a measured result."""

from __future__ import annotations

from typing import Annotated

import typer

from specchat.cli.flags import Output, model_names
from specchat.models.draft_heads import FAMILIES


def train(
    pair: Annotated[str, typer.Argument(help="The pair whose target it drafts for.", autocompletion=model_names)],
    drafter: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(FAMILIES)}, or judge (a rule): what is trained.",
            show_default="hydra, or what --from names",
        ),
    ] = "",
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="NAME",
            help="Begin with the weights of this trained drafter, such as smol-hydra, instead of random ones.",
            show_default=False,
            autocompletion=model_names,
        ),
    ] = "",
    loss: Annotated[
        str,
        typer.Option(
            help="What training makes small, a distance of the drafter's probabilities from the target's: forward_kl,"
            " reverse_kl, jsd, tvd, tvd_plus_plus, lk or lk_mixed. With --from also tree: make more guesses of drawn"
            " trees accepted.",
            show_default="forward_kl; of specdiff: the likelihood of the text",
        ),
    ] = "",
    reference: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="For draft_model: an earlier one to compare with; --select says which tokens are learnt from.",
            show_default="learn from all",
            autocompletion=model_names,
        ),
    ] = "",
    select: Annotated[
        str,
        typer.Option(
            help="Which tokens are learnt from. With --reference: behind, missed or prompts. For drafters that guess"
            " token after token: reached, confidence or guessable.",
            show_default="behind or reached",
        ),
    ] = "",
    texts: Annotated[
        str,
        typer.Option(
            metavar="target|draft|mixed",
            help="Who writes what a draft_model learns from: the target, the draft model itself, or both by turns.",
            show_default="target",
        ),
    ] = "",
    ensemble: Annotated[
        int,
        typer.Option(
            metavar="<int>",
            help="For prompt_tokens, mtp or speculative_streaming: how many trained embeddings stand for one token to"
            " guess; their answers are averaged. 1 to 16.",
        ),
    ] = 1,
    depths: Annotated[
        str,
        typer.Option(
            metavar="1,2,…",
            help="For draft_model: after how many layers it learns to guess as well, so that easy tokens need fewer.",
            show_default="2, all at once, or as in --from",
        ),
    ] = "",
    form: Annotated[
        str,
        typer.Option(
            metavar="eagle|fs|fspad",
            help="For eagle, how a token joins the target's state. eagle: side by side; fs: it gates the state;"
            " fspad: as fs, and a part of the output serves the head alone.",
            show_default="eagle, or as in --from",
        ),
    ] = "",
    plain: Annotated[
        str,
        typer.Option(metavar="FILE", help="For draft_model: plain text to learn from first.", show_default="none"),
    ] = "",
    prompts: Annotated[
        str,
        typer.Option(
            metavar="self|chats|FILE",
            help="self: the model writes the user's turns as well; chats: yours, asked first; a file: lines or JSON.",
        ),
    ] = "self",
    tokens: Annotated[int, typer.Option(help="Tokens of replies to write and to learn from.")] = 400_000,
    hours: Annotated[float, typer.Option(help="The most hours to learn; 0 is as long as it helps.")] = 0.0,
    name: Annotated[
        str,
        typer.Option(help="The drafter's name.", show_default="PAIR-DRAFTER, with a number if that is taken"),
    ] = "",
    seed: Annotated[int, typer.Option(metavar="<int>", min=0, help="The same seed writes the same texts.")] = 0,
    threads: Annotated[int, typer.Option(metavar="<int>", min=0, help="Processor threads; 0 chooses.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the training of this name.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before your chats are read.")] = False,
    verdict: Annotated[bool, typer.Option(help="Measure the result against the pair's default.")] = True,
    stop_at_eof: Annotated[
        bool, typer.Option("--stop-at-eof", help="Stop when standard input ends: for a program that starts this one.")
    ] = False,
    output: Annotated[
        Output, typer.Option(help="text; one JSON object at the end; or progress and result as JSON lines.")
    ] = Output.text,
) -> None:
    """Train a drafter, which guesses what a pair's model writes next, on this machine.

    The model writes texts. What it computes while it reads them is kept, and from that a small network learns to guess
    its next words. Every stage can be stopped with Ctrl+C and gone on with by --resume. Nothing leaves this machine.
    """
    from specchat.cli.training_run import RunOptions, run_training
    from specchat.config.trained_drafters import JUDGE, free_name
    from specchat.training.limits import (
        depths_of,
        method_of,
        refuse_plain,
        refuse_unknown_form,
        refuse_unknown_loss,
        refuse_unknown_texts,
        start_named,
        trainable_target,
    )
    from specchat.training.training_request import TrainingRequest, is_begun

    target = trainable_target(pair)
    how = RunOptions(output, threads=threads, yes=yes, verdict=verdict, stop_at_eof=stop_at_eof)

    def request() -> TrainingRequest:
        return TrainingRequest(
            pair, drafter, prompts, tokens, hours, name, seed, resume, start, loss, reference, select, texts, ensemble,
            plain, depths, form,
        )  # fmt: skip

    if drafter == JUDGE:
        from specchat.cli.training_run import train_judge

        name = name or free_name(f"{pair}-{JUDGE}")
        raise typer.Exit(train_judge(request(), how))
    drafter = method_of(drafter, start, target)
    refuse_unknown_loss(drafter, loss, reference, select, start)
    refuse_unknown_texts(drafter, texts)
    refuse_plain(drafter, plain, start)
    depths_of(drafter, depths)
    refuse_unknown_form(drafter, form)
    if reference:
        start_named(reference, target, drafter, "--reference")
    older = f"{pair}-{drafter}"  # the name of before, where a drafter that comes with specchat has it now
    name = name or (older if resume and is_begun(older) else free_name(older))
    raise typer.Exit(run_training(request(), how))
