"""Make the demo recording and every picture of the app anew: `python assets/make_all_pictures.py`.

All of them come from real replies, and figures are seen in them: run it on a machine that does nothing else, with the
weights of `qwen-coder` fetched (`specchat models pull qwen-coder`). `--keep-recording` leaves `demo.jsonl` as it is.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RECORDING, PICTURES = "record_demo.py", ("make_readme_pictures.py", "make_screenshots.py")


def main(keep_recording: bool) -> None:
    """Run the scripts one after another; the first that fails ends it."""
    for script in PICTURES if keep_recording else (RECORDING, *PICTURES):
        print(f"{script}:", flush=True)
        subprocess.run([sys.executable, HERE / script], check=True)


if __name__ == "__main__":
    main(keep_recording="--keep-recording" in sys.argv[1:])
