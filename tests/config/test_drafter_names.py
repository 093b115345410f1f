"""What a drafter that is to be trained is called, and that none takes the place of another unasked."""

from __future__ import annotations

from specchat.config import load_catalog, users_models
from specchat.config.directories import shipped_drafters_dir
from specchat.config.trained_drafters import free_name, whose_name


def test_a_name_that_comes_with_specchat_gets_a_number() -> None:
    assert free_name("gemma-hydra") == "gemma-hydra"
    assert free_name("smol-hydra") == "smol-hydra-2"
    assert free_name("smol-hydra", lambda name: name == "smol-hydra-2") == "smol-hydra-3"


def test_a_name_in_models_toml_gets_a_number(tmp_path) -> None:
    users_models().parent.mkdir(parents=True, exist_ok=True)
    files = "".join(
        f'[[drafters.gemma-hydra.files]]\nname = "{name}"\nsize = 5\nsha256 = "{"0" * 64}"\n'
        for name in ("drafter.toml", "weights.safetensors")
    )
    users_models().write_text(
        '[drafters.gemma-hydra]\nmethod = "hydra"\ntarget = "smollm2-135m-instruct"\n'
        'sources = [{hub = "someone/drafter", revision = "main"}]\nlicence = "MIT"\n' + files
    )
    assert free_name("gemma-hydra") == "gemma-hydra-2"
    assert whose_name("gemma-hydra") == "is named in models.toml"


def test_a_pair_that_drafts_with_shipped_weights_names_them() -> None:
    """Else the newest would be used: a training of one's own, before anybody chose it."""
    catalog = load_catalog()
    for pair in catalog.pairs.values():
        options = pair.defaults.get("method_options", {})
        if "hydra" in str(options.get("merge.of", "")):
            assert (shipped_drafters_dir() / options["hydra.weights"]).is_dir(), pair.name
    assert "hydra" in catalog.pair("smol").defaults["method_options"]["merge.of"]
