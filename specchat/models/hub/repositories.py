"""Files from the model hub: its client downloads them, its listing gives their hashes."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from specchat.config import HubSource, ModelFile, private_dir
from specchat.config.values import gguf_parts
from specchat.errors import WeightsError, meant
from specchat.models.hub.disk import Meter, is_full, need_space, no_space
from specchat.models.hub.model_state import acceptable, bytes_below


@dataclass(frozen=True)
class Listing:
    """A repository at one commit: the files we would take, by their path in it."""

    repo: str
    commit: str
    files: dict[str, ModelFile]


def list_repository(source: HubSource) -> Listing:
    """The files of the repository, pinned to the commit that is current now.

    Asked first because it fails at once where there is no network; the download itself would retry for long.

    Raises:
        WeightsError: in one line, why the hub gave no answer.
    """
    hub = _client()
    try:
        info = hub.HfApi().model_info(source.repo, revision=source.revision, files_metadata=True, timeout=15)
    except Exception as error:  # the client lets its transport's errors through, whichever transport it has
        raise WeightsError(_why(source, error)) from None
    files = {sibling.rfilename: _file(sibling) for sibling in info.siblings or ()}
    return Listing(source.repo, info.sha, files)


def weights_in(listing: Listing) -> dict[str, ModelFile]:
    """A repository's safetensors and what belongs to them, no pickle, no code; WeightsError without any."""
    taken = {path: file for path, file in listing.files.items() if acceptable(path) and _of_transformers(path)}
    if not any(path.endswith(".safetensors") for path in taken):
        raise WeightsError(f"{listing.repo} is refused: it has no .safetensors, and pickles are never read")
    return taken


@lru_cache(maxsize=256)
def total_bytes(source: HubSource) -> int:
    """How large the files are that would be taken of a repository, asked once; WeightsError if the hub does not say."""
    listing = list_repository(source)
    if source.file is None:
        taken = list(weights_in(listing).values())
    else:
        taken = [listing.files.get(part, ModelFile(part)) for part in gguf_parts(source.file)]
    sizes = [file.size for file in taken]
    if not sizes or any(size is None for size in sizes):
        raise WeightsError(f"hub repository {source.repo} does not say how large its files are")
    return sum(size or 0 for size in sizes)


def fetch_from_hub(listing: Listing, path: str, parts: Path, meter: Meter) -> Path:
    """One file of the repository, unverified; the client goes on with a file that was begun.

    Raises:
        WeightsError: no such file, no network, no space.
    """
    if path not in listing.files:
        raise WeightsError(f"{listing.repo} has no file {path!r}{meant(path, listing.files)}")
    home = private_dir(parts / f"hub-{listing.commit[:12]}")
    need_space(home, max(0, (listing.files[path].size or 0) - bytes_below(home)), path)
    download = _Download(listing, path, home)
    thread = threading.Thread(target=download.run, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.1)
            meter.at(bytes_below(home))
    finally:
        download.stopped.set()
    if download.error is not None:
        raise download.error
    assert download.result is not None, "a download ends with a file or with an error"
    return download.result


@dataclass
class _Download:
    """One download on a thread of its own, so that its progress can be shown and it can be cancelled."""

    listing: Listing
    path: str
    home: Path
    stopped: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None
    result: Path | None = None

    def run(self) -> None:
        hub = _client()
        stopped = self.stopped

        class Silent(_SilentBar):
            def update(self, count: float | None = 1) -> None:
                if stopped.is_set():
                    raise InterruptedError("called off")

        try:
            path = hub.hf_hub_download(
                self.listing.repo, self.path, revision=self.listing.commit, local_dir=self.home, tqdm_class=Silent
            )
            self.result = Path(path)
        except Exception as error:
            full = isinstance(error, OSError) and is_full(error)
            why = WeightsError(_why(HubSource(self.listing.repo, self.path), error))
            self.error = no_space(self.home, self.path) if full else why


class _SilentBar:
    """Stands where the hub's client wants a progress bar; the engine's side never writes to a terminal."""

    n = 0
    total = None

    def __init__(self, *args: Any, **options: Any) -> None:
        self.format_dict: dict[str, Any] = {}

    def __enter__(self) -> _SilentBar:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def set_postfix_str(self, *args: Any, **options: Any) -> None: ...

    def refresh(self, *args: Any, **options: Any) -> None: ...

    def close(self) -> None: ...


def _client() -> Any:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read once, when the client is first imported
    try:
        import huggingface_hub
    except ImportError:
        raise WeightsError("huggingface_hub is not installed, and these weights come through it") from None
    return huggingface_hub


def _file(sibling: Any) -> ModelFile:
    """Large files carry their SHA-256 in the listing; small ones (configuration) only their size."""
    return ModelFile(sibling.rfilename, sibling.size, sibling.lfs.sha256 if sibling.lfs else None)


def _of_transformers(path: str) -> bool:
    """Some repositories carry the same weights a second time, for other programs."""
    return not path.endswith(".gguf") and not path.startswith("consolidated")


def _why(source: HubSource, error: Exception) -> str:
    names = {kind.__name__ for kind in type(error).__mro__}
    where = f"hub repository {source.repo}"
    if "GatedRepoError" in names:
        return f"{where} is gated: accept its licence on its page, then log in with `hf auth login`"
    if "RevisionNotFoundError" in names:
        return f"{where} has no revision {source.revision!r}"
    if "RepositoryNotFoundError" in names:
        return f"{where} does not exist, or needs a login: `hf auth login`"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return f"{where} answered with HTTP status {status}"
    if names & {"TransportError", "LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectionError", "TimeoutError"}:
        return f"the model hub cannot be reached for {source.repo}"
    return f"{where}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
