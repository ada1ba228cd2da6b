"""Load a model and its processor from a directory or the hub: without running code, in the class it was saved as."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from .._utils.optional_imports import need
from ..errors import FileError, InputError, MissingError, ModelError
from .model_objects import ModelParts, sentence_pair
from .sentence_directory import MODULES, SentenceDirectory
from .smiles import SmilesTokenizer

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "spiece.model", "sentencepiece.bpe.model", "vocab.json")
HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]  # of a sentence encoder on the hub
#: limits of configuration values: modules are built before weights are read, so a damaged value would fill the memory
MOST = {
    "num_hidden_layers": 10_000, "num_layers": 10_000, "n_layer": 10_000, "n_layers": 10_000, "encoder_layers": 10_000,
    "decoder_layers": 10_000, "num_experts": 10_000, "num_local_experts": 10_000, "n_routed_experts": 10_000,
    "num_labels": 1_000_000,
}  # fmt: skip
REMOTE = (
    "This model brings its own Python code, which is not run unless you say so: read it, and give "
    "trust_remote_code=True (--trust-remote-code) if you trust it."
)


def load_parts(name: str, dtype: Any, trust_remote_code: bool, allow_pickle: bool, **options: Any) -> ModelParts:
    """Load a model and its processor; of a sentence encoder, also its pooling and its similarity."""
    sentences = SentenceDirectory.find(_local(name, options))
    if sentences is None:
        model = load_model(name, dtype, trust_remote_code, allow_pickle, **options)
        return ModelParts(model, load_processor(name, model, trust_remote_code, **options))
    inner = str(sentences.transformer)
    transformer = load_model(inner, dtype, trust_remote_code, allow_pickle, encoder=True, **options)
    processor = load_processor(inner, transformer, trust_remote_code, **options)
    return sentence_pair(
        sentences.build(transformer, allow_pickle).to(next(transformer.parameters()).dtype),
        getattr(processor, "tokenizer", None) or processor,
        str(sentences.settings.get("similarity_fn_name") or "cosine"),
        sentences.settings.get("truncate_dim"),
        limit=sentences.limit,
        prompt=sentences.prompt,
        lower=sentences.lower,
    )


def _local(name: str, options: Mapping[str, Any]) -> Path:
    """Return a model's directory; that of a sentence encoder on the hub is downloaded, with the layers after it."""
    directory = Path(name).expanduser()
    if directory.exists() or name.startswith((".", "/", "~")) or "\\" in name:
        return directory
    hub = need("huggingface_hub", "models of the hub", "hf")
    own = {key: options[key] for key in ("revision", "token", "cache_dir", "local_files_only") if key in options}
    try:
        hub.hf_hub_download(name, MODULES, **own)
    except Exception:  # it has no such file, or the hub is not reached: loading the model says what is wrong
        return directory
    return Path(hub.snapshot_download(name, allow_patterns=HUB_FILES, **own))


def load_model(
    name: str, dtype: Any, trust_remote_code: bool, allow_pickle: bool, encoder: bool = False, **options: Any
) -> nn.Module:
    """Load the model of a directory or a repository of the hub, in the class that its configuration names.

    Args:
        name: the directory, or the repository.
        dtype: its precision.
        trust_remote_code: run Python code that comes with the model.
        allow_pickle: open weights that are pickled.
        encoder: load it without a head; a pooler, which then is not used, may lack weights.
        options: of ``from_pretrained``.
    """
    transformers = need("transformers", "pretrained models", "hf")
    directory = Path(name).expanduser()
    if directory.exists() or name.startswith((".", "/", "~")) or "\\" in name:
        _check_directory(directory, allow_pickle)
        name = str(directory)
    with _load_errors(name, "model"):
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code, **options)
        cls = _class(transformers, config, trust_remote_code, encoder)
        pickle = {} if allow_pickle else {"use_safetensors": True}
        remote = {"trust_remote_code": True} if trust_remote_code else {}
        model, report = cls.from_pretrained(
            name, config=config, dtype=dtype, output_loading_info=True, **pickle, **remote, **options
        )
    _check_loaded(name, report, ("pooler.",) if encoder else ())
    out: nn.Module = model.eval()
    return out


def load_processor(name: str, model: nn.Module, trust_remote_code: bool, **options: Any) -> Any:
    """Load the tokenizer, image processor, feature extractor or combined processor; ``None`` for time series."""
    transformers = need("transformers", "pretrained models", "hf")
    if getattr(model, "main_input_name", "") == "past_values":
        return None
    directory = Path(name).expanduser()
    name = str(directory) if directory.exists() else name
    vocabulary = directory / "vocab.txt"
    if vocabulary.exists() and not any((directory / f).exists() for f in TOKENIZER_FILES):
        if SmilesTokenizer.reads(vocabulary):
            return SmilesTokenizer.from_vocabulary(vocabulary)
        if getattr(model.config, "model_type", "") not in ("bert", "electra", "distilbert", "mobilebert", "lxmert"):
            raise ModelError(
                f"'{name}' has a vocabulary but no description of its tokenizer (tokenizer.json). Make the tokenizer "
                "yourself and give it: Explainer(model, processor=tokenizer)."
            )
    tried: list[str] = []
    for loader in ("AutoProcessor", "AutoTokenizer", "AutoImageProcessor", "AutoFeatureExtractor"):
        try:
            return getattr(transformers, loader).from_pretrained(name, trust_remote_code=trust_remote_code, **options)
        except Exception as error:  # each loader has its own exceptions; all are listed below
            tried.append(f"{loader}: {str(error).splitlines()[0][:160] if str(error) else type(error).__name__}")
    raise ModelError(
        f"No tokenizer or image processor is found in '{name}'. Save it beside the model "
        "(tokenizer.save_pretrained(directory)), or give it: Explainer(model, processor=tokenizer). Tried: "
        + "; ".join(tried)
    )


def _check_directory(directory: Path, allow_pickle: bool) -> None:
    if not directory.is_dir():
        what = "is a file" if directory.exists() else "does not exist"
        raise FileError(f"The model directory '{directory}' {what}. Give the directory that holds config.json.")
    config = directory / "config.json"
    if not config.exists():
        raise FileError(f"'{directory}' holds no model: it has no config.json.")
    try:
        settings = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"'{config}' is damaged: {error}.") from error
    for name, most in MOST.items():
        number = settings.get(name) if isinstance(settings, dict) else None
        if isinstance(number, int | float) and number > most:
            raise FileError(f"'{config}' is damaged: '{name}' is {number:g}, and no model has more than {most:,}.")
    safe = list(directory.glob("*.safetensors"))
    pickled = [p for pattern in PICKLED for p in directory.glob(pattern)]
    if not safe and not pickled:
        raise FileError(f"'{directory}' holds a config.json but no weights (no .safetensors file).")
    if not safe and not allow_pickle:
        raise ModelError(
            f"The weights in '{directory}' ({pickled[0].name}) are pickled, and a pickle can run any code when it is "
            "opened. Convert them to safetensors (model.save_pretrained), or, if you trust them, say "
            "allow_pickle=True (--allow-pickle)."
        )


def _class(transformers: Any, config: Any, trust_remote_code: bool, encoder: bool) -> Any:
    """Return the class that the configuration names; of an encoder, a class without a head."""
    names = getattr(config, "architectures", None) or []
    if getattr(config, "auto_map", None) and not hasattr(transformers, (names or ["?"])[0]):
        if not trust_remote_code:
            raise ModelError(REMOTE)
        kinds = [k for k in config.auto_map if k.startswith("AutoModel")]
        return getattr(transformers, kinds[0])
    if encoder and not any(name.endswith("Model") for name in names):
        return transformers.AutoModel
    for name in names:
        if hasattr(transformers, name):
            return getattr(transformers, name)
    raise ModelError(
        f"The model's config.json names {'the class ' + names[0] if names else 'no class'} ('architectures'): this "
        "transformers does not know it. Load the model yourself and give it: Explainer(model, processor=...)."
    )


def _check_loaded(name: str, report: dict[str, Any], unused: tuple[str, ...]) -> None:
    missing = sorted(key for key in report.get("missing_keys", ()) if not key.startswith(unused))
    mismatched = sorted(str(k) for k in report.get("mismatched_keys", ()))
    if missing or mismatched:
        raise ModelError(
            f"'{name}' lacks weights that the model needs ({len(missing) + len(mismatched)}, the first: "
            f"{(missing + mismatched)[0]}), and would run on random numbers in their place. Load the class that was "
            "saved, or train the missing part first."
        )


@contextlib.contextmanager
def _load_errors(name: str, what: str) -> Any:
    """Raise any error of a library as a :class:`ModelError`."""
    try:
        yield
    except (InputError, FileError, ModelError, MissingError):
        raise
    except Exception as error:  # HuggingFace, safetensors and the network each have their own exceptions
        if "trust_remote_code" in str(error):
            raise ModelError(REMOTE) from error
        first = str(error).strip().splitlines()
        raise ModelError(
            f"The {what} '{name}' could not be loaded: {first[0][:300] if first else type(error).__name__}"
            + ("" if Path(name).exists() else " (There is no directory of that name either.)")
        ) from error


def quiet() -> None:
    """Turn off progress bars and messages of transformers in this process: for commands and workers."""
    try:
        from transformers.utils import logging
    except ImportError:  # load_model says how to get it
        return
    logging.set_verbosity_error()
    logging.disable_progress_bar()
