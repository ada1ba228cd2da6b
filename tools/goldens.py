"""Make the compact copy of the golden cases that lies beside this file.

Usage: ``python -m tools.goldens``. It reads ``$WHENCE_SHARED/golden`` (default: ``shared`` beside the repository)
and keeps models, inputs, final maps and relevance sums; arrays inside the model stay in the shared directory.
"""

import json
import os
import shutil
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "tests" / "goldens" / "cases"
SHARED = Path(os.environ.get("WHENCE_SHARED", ROOT.parent / "shared")) / "golden"

# case -> the arrays to keep (of every float64 file in it; of the rules, case 00, also of float32), and to drop again
CASES = {
    "00_cvpr21_rules": (["*"], []),
    "01_cvpr21_vit": (
        ["pixel_values", "logits", "target*", "ours_transformer_attribution_*", "ours_rollout_*", "ours_last_layer*",
         "ours_second_layer*", "ours__sum__block?__R_*", "attn_rollout_*", "gradcam_attn", "orig_full",
         "orig_last_layer"],
        [],
    ),
    "02_cvpr21_bert": (
        ["input_ids", "attention_mask", "token_type_ids", "logits", "target", "ours_generate_LRP_*",
         "ours_generate_full_lrp", "ours__sum__layer?__R_*", "ours_generate_attn_*", "ours_generate_rollout_*",
         "orig_generate_full_lrp", "orig_generate_LRP_last_layer"],
        [],
    ),
    "03a_gae_vit": (["pixel_values", "logits", "target_*", "gae_relevance_*"], []),
    "03b_gae_bert": (
        ["input_ids", "attention_mask", "logits", "target_*", "gae_cls_row_*", "transformer_att_cls_row_*"], []
    ),
    "03c_gae_lxmert": (
        ["input_ids", "attention_mask", "visual_*", "token_type_ids", "logits", "target", "ours_*__R_*", "raw_attn*",
         "attn_gradcam*"],
        ["*noagg*"],
    ),
    "03d_gae_detr": (
        ["pixel_values", "logits", "*_target_class", "q?_ours_nolrp_norm", "q?_ours_nolrp_nonorm",
         "q?_ours_nolrp_norm_noself10", "q?_ours_nolrp_norm_cls1*", "q?_raw_attn", "q?_attn_gradcam"],
        ["*__R_*"],
    ),
    "03d2_gae_detr_zerorow": (
        ["pixel_values", "logits", "*_target_class", "q?_ours_nolrp_norm", "q?_ours_nolrp_nonorm", "q?_*nan_rows*"], []
    ),
    "03f_gae_rules": (["*"], []),
    # gamma > 0 changes the forward pass of the published code: not reproduced, not kept
    "04_icml22_ali": (
        ["input_ids", "logits", "cl?_*__R", "cl?_*__sumR", "cl?__R_*", "cl?_GAE_*", "attn_last", "rollout_2",
         "rollout_nores_2", "attention_flow_2"],
        ["*gamma*"],
    ),
    "05_attnlrp_bert": (["*_input_ids", "*_attention_mask", "*_target*", "*_relevance", "*_relevance_target2"], []),
    "05_attnlrp_gpt2": (["*_input_ids", "*_target*", "*_relevance", "*_relevance_target2"], []),
    "05_attnlrp_llama": (["*_input_ids", "*_target*", "*_relevance", "*_relevance_target2"], []),
    "06_attention_flow": (["*_mats", "*_flow_mats_unnormalised", "*_joint"], []),
    "07_perturbation": (
        ["fracs", "unk_token_id", "*_input_ids", "*__attribution", "*__generate_evidence", "*__pruning_mse", "*__AU*",
         "images01", "target", "vis_noties", "vis_noties_???__*"],
        [],
    ),
    "10_legrad_clip": (["pixel_values", "text_embedding", "cosine", "L*_before_minmax", "L*_REIMPL_*"], []),
    "12_libragrad_vit": (["pixel_values", "logits", "S?_NG_*", "S?_LX*"], ["*_matrix"]),
    "13_palrp_vit": (
        ["pixel_uint8", "logits", "*_target", "split_*", "full_lrp_GammaLinear_POS_ENC_gammaConv__argmax"],
        [],
    ),
    "14_palrp_llama": (["*"], ["logits"]),
    "15_attnlrp_vit_gamma": (
        ["pixel_values", "logits", "img?_target*", "img?_cp_nozennit", "*_conv0.25_lin0.05*", "*_conv0_lin0.05",
         "*_conv0.25_lin0", "*_conv100_lin1"],
        [],
    ),
    "16_reslrp_vit": (
        ["pixel_values", "gammas", "logits", "*_target", "*_pixel", "*_token_emb", "*_block_inputs", "*_C", "*_A",
         "*_sum_input_and_constants"],
        [],
    ),
    "19_dave_vit_parts": (["*"], []),
    "20_biattn_vit": (["*"], []),
}  # fmt: skip


def kept(name, keep, drop):
    return any(fnmatchcase(name, p) for p in keep) and not any(fnmatchcase(name, p) for p in drop)


def main():
    noise = json.loads((SHARED / "float32_vs_float64_relative.json").read_text())
    small = {}
    for case, (keep, drop) in CASES.items():
        (HERE / case).mkdir(exist_ok=True)
        if (SHARED / case / "hf").is_dir():
            (HERE / case / "hf").mkdir(exist_ok=True)
            for name in ("config.json", "model.safetensors"):
                shutil.copyfile(SHARED / case / "hf" / name, HERE / case / "hf" / name)
        types = "float*" if case.startswith("00") else "float64*"
        for path in sorted((SHARED / case).glob(f"*_{types}.npz")):
            with np.load(path) as arrays:
                chosen = {name: arrays[name] for name in arrays.files if kept(name, keep, drop)}
            np.savez_compressed(HERE / case / path.name, **chosen)
            measured = noise.get(f"{case}/{path.name}", {})
            small[f"{case}/{path.name}"] = {n: float(f"{measured[n]:.3g}") for n in chosen if measured.get(n)}
    small = {name: values for name, values in small.items() if values}
    (HERE / "float32_noise.json").write_text(json.dumps(small, indent=1) + "\n")
    size = sum(path.stat().st_size for path in HERE.rglob("*") if path.is_file())
    print(f"{size / 1e6:.2f} MB in {HERE.name}/")


if __name__ == "__main__":
    main()
