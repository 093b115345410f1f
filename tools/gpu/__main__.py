"""`python -m tools.gpu [PART …]`: Markdown on standard output, OUT/result.json, progress on standard error."""

from __future__ import annotations

# Not Typer, as everywhere else: machines with large cards often have torch and transformers and nothing else.
import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from specchat.errors import SpecchatError, UsageError
from tools.gpu.run_parts import PARTS, check
from tools.gpu.setup import Setup

_RESULT = "result.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts; the exit code is 1 only where a text or a product is wrong, and 2 where a part broke."""
    chosen = _parser().parse_args(arguments)
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        weights = {name: _existing(getattr(chosen, name)) for name in ("weights", "target", "draft")}
        setup = Setup.on(chosen.device, chosen.tiny, **weights)
        command = ["python", "-m", "tools.gpu", *words]
        verdict = check(setup, chosen.out / _RESULT, chosen.parts, chosen.again, _show, _say, command)
    except SpecchatError as error:
        _say(str(error))
        return UsageError.exit_code
    for name in verdict.wrong:
        _say(f"{name}: a text is not the target's, or a product is wrong")
    return verdict.code


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:10} {about}" for name, about in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu",
        description="Check and measure specchat on this machine.",
        epilog=f"parts:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="which parts; all that can be measured by default")
    parser.add_argument("--out", type=Path, default=Path("gpu-check"), help="folder for result.json")
    parser.add_argument("--device", default="auto", help="cuda, cuda:1, cpu; auto takes the GPU if there is one")
    parser.add_argument(
        "--tiny", action="store_true", help="small shapes and few rounds: tries the program, not the machine"
    )
    parser.add_argument("--weights", type=Path, help="a small model of the Llama shape (GGUF file or folder), for text")
    parser.add_argument("--target", type=Path, help="a true pair's target (GGUF file or folder), for pair")
    parser.add_argument("--draft", type=Path, help="a true pair's draft model, for pair")
    parser.add_argument("--again", action="store_true", help="measure also what OUT/result.json holds already")
    return parser


def _existing(path: Path | None) -> Path | None:
    if path is not None and not path.exists():
        raise UsageError(f"{path} does not exist")
    return path


def _show(text: str) -> None:
    print(text + "\n", flush=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
