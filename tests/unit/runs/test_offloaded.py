"""Models whose weights are offloaded by accelerate: equal to the plain model, and left exactly as found."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import whence

IDS = torch.randint(3, 90, (2, 6), generator=torch.Generator().manual_seed(1))
METHODS = ["conservative-lrp", "gradient-x-input", "rollout", "lrp", "integrated-gradients", "occlusion"]
PARTS = {
    "model.embed_tokens": "cpu",
    "model.layers.0": "cpu",
    "model.layers.1": "disk",
    "model.norm": "disk",
    "model.rotary_emb": "cpu",
    "lm_head": "disk",
}


def plain(tied=False):
    torch.manual_seed(0)
    sizes = {"vocab_size": 90, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, tie_word_embeddings=tied)).eval()


def offloaded(kind, directory, model):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not among the packages of the dev extra")
    device = torch.device("cpu")
    if kind == "memory":
        return accelerate.cpu_offload(model, execution_device=device) or model
    if kind == "disk":
        return accelerate.disk_offload(model, directory, execution_device=device, offload_buffers=True) or model
    if kind == "parts":
        return accelerate.dispatch_model(model, PARTS, main_device="cpu", offload_dir=directory)
    model.save_pretrained(directory / "saved")
    folder = directory / "offloaded"
    return LlamaForCausalLM.from_pretrained(directory / "saved", device_map={"": "disk"}, offload_folder=folder).eval()


def state(model):
    """All that could have been changed: tensors by identity, hooks with their settings."""
    tensors = [
        (name, id(t), t.device, t.requires_grad, t.__dict__.copy())
        for module in model.modules()
        for name, t in (*module._parameters.items(), *module._buffers.items())
        if t is not None
    ]
    hooks = [(id(m._hf_hook), dict(vars(m._hf_hook))) for m in model.modules() if hasattr(m, "_hf_hook")]
    return tensors, hooks, [(m.training, id(m.forward.func)) for m in model.modules() if hasattr(m, "_hf_hook")]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["memory", "disk", "parts", "loaded"])
def test_an_offloaded_model_is_explained_and_left_as_found(kind, tied, tmp_path):
    model, whole = offloaded(kind, tmp_path, plain(tied)), plain(tied)
    assert any(p.is_meta for p in model.parameters())
    before = state(model)
    for method in METHODS:
        found = whence.explain(model, {"input_ids": IDS}, method).scores
        expected = whence.explain(whole, {"input_ids": IDS}, method).scores
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max())), method
        assert state(model) == before
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, whole(IDS).logits)


def test_an_offloaded_model_is_left_as_found_after_an_error(tmp_path):
    model = offloaded("disk", tmp_path, plain())
    before = state(model)
    with pytest.raises(IndexError):
        whence.explain(model, {"input_ids": IDS + 1000})
    assert state(model) == before


def test_weights_that_cannot_be_loaded_leave_the_model_as_found(tmp_path):
    model = offloaded("disk", tmp_path, plain())
    before = state(model)
    for file in tmp_path.glob("lm_head*.dat"):
        file.unlink()
    with pytest.raises(FileNotFoundError):
        whence.explain(model, {"input_ids": IDS})
    assert state(model) == before


def test_an_offloaded_model_is_not_captured(tmp_path):
    model = offloaded("memory", tmp_path, plain())
    explain = whence.compile(model, "gradient-x-input")
    assert torch.equal(explain({"input_ids": IDS}).scores, explain({"input_ids": IDS}).scores)
    assert any("offloaded" in why for why in explain.captures.refusals)


def test_weights_without_values_are_refused():
    with torch.device("meta"):
        model = LlamaForCausalLM(plain().config).eval()
    with pytest.raises(whence.ModelError, match="weights are on the meta device: they have shapes and no values"):
        whence.explain(model, {"input_ids": IDS})
