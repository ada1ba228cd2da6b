"""Make the compact copy of the golden cases that lies beside this file.

Usage: ``python tests/golden/make.py``. It reads ``$WHENCE_SHARED/golden`` (default: ``shared`` beside the repository)
and keeps models, inputs, final maps and relevance sums; arrays inside the model stay in the shared directory.
"""

import json
import os
import shutil
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
SHARED = Path(os.environ.get("WHENCE_SHARED", HERE.parents[2] / "shared")) / "golden"

# case -> the arrays to keep (of every golden_*.npz in it), and the arrays to drop again
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
    "03f_gae_rules": (["*"], []),
    # gamma > 0 changes the forward pass of the published code: not reproduced, not kept
    "04_icml22_ali": (
        ["input_ids", "logits", "cl?_*__R", "cl?_*__sumR", "cl?__R_*", "cl?_GAE_*", "attn_last", "rollout_2",
         "rollout_nores_2", "attention_flow_2"],
        ["*gamma*"],
    ),
    "06_attention_flow": (["*_mats", "*_flow_mats_unnormalised", "*_joint"], []),
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
        for path in sorted((SHARED / case).glob("golden_*.npz")):
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
