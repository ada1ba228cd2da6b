"""Language models that look only back."""

from __future__ import annotations

from functools import partial
from typing import Any

import transformers
from torch import Tensor, nn

from tools.conformance.family import PADDED_TEXT, VOCABULARY, add, text

GROUP = "Decoders"
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 24, "max_position_embeddings": 40,
    "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def last(outputs: Any) -> Tensor:
    """The logit of a token behind the seventh, the last that is not padding."""
    logit: Tensor = outputs.logits[:, 6, 5]
    return logit


def build(implementation: str, *, model: str, config: str, without: tuple[str, ...] = (), **options: Any) -> nn.Module:
    """A language model, which fills a cache as it does for everyone."""
    small = {k: v for k, v in SMALL.items() if k not in without}
    configuration = getattr(transformers, config)(**{**small, **options}, attn_implementation=implementation)
    made: nn.Module = getattr(transformers, model)(configuration)
    return made


def decoder(
    name: str,
    prefix: str,
    parts: dict[str, Any] | None = None,
    *,
    head: str = "ForCausalLM",
    config: str = "",
    **options: Any,
) -> None:
    """Add a language model of two layers that reads seven tokens: two attentions."""
    add(name, GROUP, **{
        "attentions": 2, "streams": {"text": 7}, "inputs": text, "target": last, **PADDED_TEXT,
        "build": partial(build, model=f"{prefix}{head}", config=config or f"{prefix}Config", **options),
        **(parts or {}),
    })  # fmt: skip


HYBRID: dict[str, Any] = {"attentions": 1, "note": "attention maps say nothing of its layers without attention"}
EAGER: dict[str, Any] = {"implementations": ("eager",)}  # transformers has no fused attention for these
PLAIN = ("num_key_value_heads", "head_dim")  # configurations that do not know grouped heads
LOOP: dict[str, Any] = {"experts_implementation": "eager"}  # the default, a grouped product, knows no float64
LOCAL: dict[str, Any] = {**LOOP, "num_local_experts": 4, "num_experts_per_tok": 2}
EXPERTS: dict[str, Any] = {**LOOP, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}

decoder("GPT-2", "GPT2", head="LMHeadModel", without=PLAIN)
decoder("GPT-NeoX", "GPTNeoX", without=PLAIN)
decoder("GPT-J", "GPTJ", EAGER, without=PLAIN, rotary_dim=4)
decoder("GPT-Neo", "GPTNeo", EAGER, without=PLAIN, attention_types=[[["global", "local"], 1]], window_size=4)
decoder("Llama", "Llama")
decoder("Mistral", "Mistral", sliding_window=4)
decoder("Mixtral", "Mixtral", **LOCAL)
decoder("Qwen2", "Qwen2")
decoder("Qwen2-MoE", "Qwen2Moe", **EXPERTS, shared_expert_intermediate_size=8)
decoder("Qwen3", "Qwen3")
decoder("Qwen3-MoE", "Qwen3Moe", **EXPERTS)
decoder("Gemma", "Gemma")
decoder("Gemma 2", "Gemma2", EAGER, sliding_window=4, query_pre_attn_scalar=4)
decoder("Gemma 3", "Gemma3", config="Gemma3TextConfig", sliding_window=4, query_pre_attn_scalar=4)
decoder("Phi", "Phi")
decoder("Phi-3", "Phi3")
decoder("PhiMoE", "Phimoe", **LOCAL)
decoder("Falcon", "Falcon", without=PLAIN)
decoder("Falcon with ALiBi", "Falcon", {
    "implementations": ("sdpa",), "note": "eager and SDPA are different models in transformers",
}, without=PLAIN, alibi=True)  # fmt: skip
decoder("BLOOM", "Bloom", EAGER, without=PLAIN)
decoder("OPT", "OPT", ffn_dim=24, word_embed_proj_dim=16)
decoder("MPT", "Mpt", EAGER, without=PLAIN)
decoder("StableLM", "StableLm")
decoder("Cohere", "Cohere")
decoder("Cohere 2", "Cohere2", sliding_window=4)
decoder("OLMo", "Olmo")
decoder("OLMo 2", "Olmo2")
decoder("OLMo 3", "Olmo3", sliding_window=4)
decoder("OLMoE", "Olmoe", **LOOP, num_experts=4, num_experts_per_tok=2)
decoder("Granite", "Granite")
decoder("GraniteMoE", "GraniteMoe", **LOCAL)
decoder("StarCoder2", "Starcoder2")
decoder("GPT-BigCode", "GPTBigCode", without=PLAIN)
decoder("SmolLM3", "SmolLM3")
decoder("GPT-OSS", "GptOss", EAGER, **LOCAL, sliding_window=4)
LATENT: dict[str, Any] = {
    "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4, "head_dim": 4,
    "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "moe_intermediate_size": 8, "first_k_dense_replace": 1, "n_shared_experts": 1, **LOOP,
}  # fmt: skip
decoder("DeepSeek-V2", "DeepseekV2", **LATENT)
decoder("DeepSeek-V3", "DeepseekV3", **LATENT)
decoder("GLM", "Glm")
decoder("GLM-4", "Glm4")
decoder("Llama 4", "Llama4", config="Llama4TextConfig", **LOCAL)
decoder("Nemotron", "Nemotron")
decoder("Persimmon", "Persimmon")
decoder("CodeGen", "CodeGen", EAGER, without=PLAIN, rotary_dim=4)
decoder("OpenAI GPT", "OpenAIGPT", EAGER, head="LMHeadModel", without=PLAIN)
decoder("CTRL", "CTRL", head="LMHeadModel", without=PLAIN)
decoder("BioGPT", "BioGpt", without=PLAIN)
decoder("Helium", "Helium")
decoder("EXAONE 4", "Exaone4", sliding_window=4)
decoder("Seed-OSS", "SeedOss")
decoder("DiffLlama", "DiffLlama", {"attentions": 4})  # two in each layer, one for each half of the values
decoder("ModernBERT decoder", "ModernBertDecoder", local_attention=4)
decoder("Mamba", "Mamba", {"attentions": 0, **EAGER}, without=PLAIN)
decoder("Mamba-2", "Mamba2", {"attentions": 0, **EAGER}, without=PLAIN, num_heads=8, head_dim=4, n_groups=2,
        state_size=8, chunk_size=4)  # fmt: skip
decoder("Falcon Mamba", "FalconMamba", {"attentions": 0, **EAGER}, without=PLAIN)
decoder("RWKV", "Rwkv", {"attentions": 0, **EAGER, "note": "without its cache, which it overwrites"}, without=PLAIN,
        use_cache=False)  # fmt: skip
# in each recurrent layer, 1 - a^2 of the recurrent gate a counts, too: a function that is 0 where the gate is open
decoder("RecurrentGemma", "RecurrentGemma", {**HYBRID, "activations": 12}, num_hidden_layers=3)
decoder("Jamba", "Jamba", HYBRID, **LOOP, attn_layer_period=2, attn_layer_offset=1, num_experts=2,
        num_experts_per_tok=1, use_mamba_kernels=False, mamba_d_state=4, mamba_dt_rank=4)  # fmt: skip
decoder("Bamba", "Bamba", HYBRID, attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=4,
        mamba_d_state=4, mamba_n_groups=1, mamba_chunk_size=4)  # fmt: skip
decoder("LFM2", "Lfm2", HYBRID, layer_types=["conv", "full_attention"])
decoder("Qwen3-Next", "Qwen3Next", HYBRID, **EXPERTS, shared_expert_intermediate_size=8,
        layer_types=["linear_attention", "full_attention"], linear_key_head_dim=4, linear_value_head_dim=4,
        linear_num_key_heads=2, linear_num_value_heads=4)  # fmt: skip
