"""A sentence encoder from the directory that sentence-transformers wrote: Transformer, pooling, further layers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import FileError, ModelError

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"

#: the settings of older files, one for each way of pooling, in the order in which several are concatenated
OLDER = {
    "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}  # fmt: skip


@dataclass(frozen=True)
class SentenceDirectory:
    """What the files of a sentence encoder say.

    Attributes:
        path: the directory.
        modules: the name of the class and the directory of each module.
        settings: similarity, prompts and others, as sentence-transformers saves them.
    """

    path: Path
    modules: tuple[tuple[str, Path], ...]
    settings: Mapping[str, Any]

    @classmethod
    def find(cls, directory: Path) -> SentenceDirectory | None:
        """Return what a directory holds; ``None`` if it holds no sentence encoder, but another model or a reranker."""
        if not (directory / MODULES).is_file():
            return None
        listed = _read(directory / MODULES)
        try:
            modules = tuple((one["type"].rsplit(".", 1)[-1], _inside(directory, one["path"])) for one in listed)
        except (TypeError, KeyError, AttributeError) as error:
            raise FileError(f"'{directory / MODULES}' is damaged: expected a list of modules.") from error
        if not modules or modules[0][0] != "Transformer":
            kind = modules[0][0] if modules else "nothing"
            raise ModelError(f"The first module of '{directory}' is {kind}; expected a Transformer. {_OBJECT}")
        return None if len(modules) == 1 else cls(directory, modules, _read(directory / SETTINGS, {}))

    @property
    def transformer(self) -> Path:
        """The directory of the Transformer, with its tokenizer."""
        return self.modules[0][1]

    @property
    def limit(self) -> int | None:
        """How many tokens it takes; ``None`` where the tokenizer says so."""
        return self._reading.get("max_seq_length")

    @property
    def lower(self) -> bool:
        """Whether texts are read in lower case."""
        return bool(self._reading.get("do_lower_case"))

    @property
    def prompt(self) -> str:
        """What is put before every text."""
        prompts = self.settings.get("prompts") or {}
        return str(prompts.get(self.settings.get("default_prompt_name"), ""))

    @property
    def _reading(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = _read(self.transformer / "sentence_bert_config.json", {})
        return found

    def build(self, transformer: nn.Module, allow_pickle: bool) -> SentenceModules:
        """Return the encoder, with the layers that follow its Transformer."""
        layers = [_layer(kind, path, self.prompt, allow_pickle) for kind, path in self.modules[1:]]
        return SentenceModules(transformer, layers).eval()


class SentenceModules(nn.Module):
    """A Transformer and the layers that make a sentence's embedding of its last hidden states.

    Args:
        transformer: returns ``last_hidden_state``.
        layers: each takes the dict of all that is known so far, and returns one with more.
    """

    def __init__(self, transformer: nn.Module, layers: list[nn.Module]) -> None:
        super().__init__()
        self.transformer = transformer
        self.layers = nn.ModuleList(layers)

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return ``sentence_embedding``, ``[batch, features]``, and ``token_embeddings``."""
        out = {**features, "token_embeddings": self.transformer(**features).last_hidden_state}
        for layer in self.layers:
            out = layer(out)
        return out


class Pooling(nn.Module):
    """Pool the embeddings of tokens; several ways are concatenated."""

    def __init__(self, modes: tuple[str, ...]) -> None:
        super().__init__()
        self.modes = modes

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Add ``sentence_embedding``."""
        tokens = features["token_embeddings"]
        mask = features.get("attention_mask", torch.ones_like(tokens[..., 0]))
        pooled = [POOLINGS[mode](tokens, mask.to(tokens.dtype)) for mode in self.modes]
        return {**features, "sentence_embedding": torch.cat(pooled, -1) if len(pooled) > 1 else pooled[0]}


def _mean(tokens: Tensor, mask: Tensor) -> Tensor:
    return (tokens * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def _mean_sqrt(tokens: Tensor, mask: Tensor) -> Tensor:
    return (tokens * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).sqrt()


def _weighted_mean(tokens: Tensor, mask: Tensor) -> Tensor:
    """Weigh each token by its number, from 1."""
    return _mean(tokens, mask * mask.cumsum(1))


def _max(tokens: Tensor, mask: Tensor) -> Tensor:
    return tokens.masked_fill(mask[..., None] == 0, -torch.inf).max(1).values


def _first(tokens: Tensor, mask: Tensor) -> Tensor:
    return _at(tokens, mask.argmax(1))


def _last(tokens: Tensor, mask: Tensor) -> Tensor:
    return _at(tokens, mask.shape[1] - 1 - mask.flip(1).argmax(1))


def _at(tokens: Tensor, place: Tensor) -> Tensor:
    return tokens.gather(1, place[:, None, None].expand(-1, 1, tokens.shape[-1]))[:, 0]


POOLINGS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": _first, "max": _max, "mean": _mean, "mean_sqrt_len_tokens": _mean_sqrt, "weightedmean": _weighted_mean,
    "lasttoken": _last,
}  # fmt: skip


class Dense(nn.Module):
    """Apply a linear layer and an activation to the embedding."""

    def __init__(self, linear: nn.Linear, activation: nn.Module) -> None:
        super().__init__()
        self.linear = linear
        self.activation = activation

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Replace ``sentence_embedding``."""
        return {**features, "sentence_embedding": self.activation(self.linear(features["sentence_embedding"]))}


class Normalize(nn.Module):
    """Scale the embedding to length 1."""

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Replace ``sentence_embedding``."""
        return {**features, "sentence_embedding": nn.functional.normalize(features["sentence_embedding"], dim=-1)}


def _layer(kind: str, path: Path, prompt: str, allow_pickle: bool) -> nn.Module:
    """Return a layer that follows the Transformer."""
    settings = _read(path / "config.json", {})
    if kind == "Pooling":
        return Pooling(_modes(settings, path, prompt))
    if kind == "Dense" and not settings.get("use_residual"):
        return _dense(settings, path, allow_pickle)
    if kind == "Normalize":
        return Normalize()
    if kind == "Dropout":  # explanations are of the model in evaluation mode
        return nn.Identity()
    what = "a Dense with a residual connection" if kind == "Dense" else kind
    raise ModelError(f"The module '{path}' is {what}, which is not read from its files here. {_OBJECT}")


def _modes(settings: Mapping[str, Any], path: Path, prompt: str) -> tuple[str, ...]:
    """Return the ways of pooling that a file names."""
    given = settings.get("pooling_mode") or [mode for name, mode in OLDER.items() if settings.get(name)] or "mean"
    modes = (given,) if isinstance(given, str) else tuple(given)
    unknown = [mode for mode in modes if mode not in POOLINGS]
    if unknown:
        raise ModelError(f"The pooling of '{path}' is '{unknown[0]}'; expected one of {', '.join(POOLINGS)}.")
    if prompt and not settings.get("include_prompt", True):
        raise ModelError(f"The pooling of '{path}' leaves out the prompt '{prompt}', which is not supported.")
    return modes


def _dense(settings: Mapping[str, Any], path: Path, allow_pickle: bool) -> Dense:
    """Return a linear layer with its activation, an activation of torch."""
    name = str(settings.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = getattr(nn, name.rsplit(".", 1)[-1], None)
    if not name.startswith("torch.nn.") or not isinstance(activation, type) or not issubclass(activation, nn.Module):
        raise ModelError(f"The activation of '{path}' is '{name}'; expected one of torch.nn. {_OBJECT}")
    try:
        linear = nn.Linear(settings["in_features"], settings["out_features"], bias=settings.get("bias", True))
        weights = _weights(path, allow_pickle)
        linear.load_state_dict({name.removeprefix("linear."): t for name, t in weights.items()})
    except (KeyError, TypeError, RuntimeError) as error:
        raise FileError(f"'{path}' is damaged: {str(error).splitlines()[0]}") from error
    return Dense(linear, activation())


def _weights(path: Path, allow_pickle: bool) -> dict[str, Tensor]:
    safe = path / "model.safetensors"
    if safe.exists():
        from safetensors.torch import load_file

        return load_file(safe)
    if not allow_pickle:
        raise ModelError(
            f"'{path}' holds no model.safetensors, and a pickle can run any code when it is opened. Save the model "
            "again with sentence-transformers, or, if you trust it, say allow_pickle=True (--allow-pickle)."
        )
    weights: dict[str, Tensor] = torch.load(path / "pytorch_model.bin", map_location="cpu", weights_only=True)
    return weights


def _inside(directory: Path, path: str) -> Path:
    """Return the directory of a module, or raise an error if it is not inside the model's own."""
    found = (directory / path).resolve()
    if not found.is_relative_to(directory.resolve()):
        raise FileError(f"'{directory / MODULES}' names the path '{path}', which lies outside the model's directory.")
    return directory / path


def _read(path: Path, missing: Any = None) -> Any:
    """Return the content of a JSON file."""
    if missing is not None and not path.exists():
        return missing
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"'{path}' is damaged: {error}.") from error


_OBJECT = (
    "Load the model with the package sentence-transformers and give the object: "
    "whence.Explainer(SentenceTransformer(directory))."
)
