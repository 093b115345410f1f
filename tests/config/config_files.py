"""Configuration files written for a test."""

from __future__ import annotations

from pathlib import Path

from specchat import config

SHA = "ab" * 32
GGUF = f'files = [{{ name = "a.gguf", size = 7, sha256 = "{SHA}" }}]\n'


def write(name: str, text: str) -> Path:
    file = config.private_dir(config.config_dir()) / name
    file.write_text(text)
    return file


def model_with(lines: str) -> config.ModelSpec:
    write("models.toml", f"[models.m]\n{lines}\n")
    return config.load_catalog().models["m"]
