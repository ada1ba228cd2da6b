"""What the papers report, to stand beside what is measured here."""

from __future__ import annotations

#: AUAC, Ali et al., ICML 2022; ``None`` where the paper leaves the cell empty
AUAC: dict[str, dict[str, float | None]] = {
    "imdb": {"Random": 0.673, "A-Last": 0.708, "A-Flow": None, "Rollout": 0.738, "GAE": 0.872, "GI": 0.920,
             "LRP (AH)": 0.911, "LRP (LN)": 0.935, "LRP (AH+LN)": 0.939},
    "sst2": {"Random": 0.664, "A-Last": 0.712, "A-Flow": 0.711, "Rollout": 0.713, "GAE": 0.821, "GI": 0.847,
             "LRP (AH)": 0.855, "LRP (LN)": 0.907, "LRP (AH+LN)": 0.908},
    "bace": {"Random": 0.624, "A-Last": 0.620, "A-Flow": 0.637, "Rollout": 0.653, "GAE": 0.675, "GI": 0.646,
             "LRP (AH)": 0.645, "LRP (LN)": 0.702, "LRP (AH+LN)": 0.707},
    "mnist": {"Random": 0.324, "A-Last": 0.862, "A-Flow": None, "Rollout": 0.358, "GAE": 0.426, "GI": 0.942,
              "LRP (AH)": 0.942, "LRP (LN)": 0.947, "LRP (AH+LN)": 0.948},
    "tweeteval-emotion": {"Random": 0.516, "A-Last": 0.542, "A-Flow": None, "Rollout": 0.554, "GAE": 0.675, "GI": 0.652,
                          "LRP (AH)": 0.675, "LRP (LN)": 0.735, "LRP (AH+LN)": 0.750},
    "tweeteval-hate": {"Random": 0.640, "A-Last": 0.663, "A-Flow": None, "Rollout": 0.659, "GAE": 0.762, "GI": 0.772,
                       "LRP (AH)": 0.797, "LRP (LN)": 0.829, "LRP (AH+LN)": 0.838},
    "tweeteval-sentiment": {"Random": 0.484, "A-Last": 0.515, "A-Flow": None, "Rollout": 0.520, "GAE": 0.611,
                            "GI": 0.651, "LRP (AH)": 0.668, "LRP (LN)": 0.710, "LRP (AH+LN)": 0.713},
    "meld-sentiment": {"Random": 0.460, "A-Last": 0.483, "A-Flow": None, "Rollout": 0.489, "GAE": 0.548, "GI": 0.591,
                       "LRP (AH)": 0.594, "LRP (LN)": 0.632, "LRP (AH+LN)": 0.635},
}  # fmt: skip

#: Chefer et al., CVPR 2021, ViT-B/16 on ImageNet (predicted class) and ImageNet-Segmentation, in percent
CVPR: dict[str, dict[str, float]] = {
    "negative-perturbation": {"rollout": 53.10, "raw attention": 45.55, "GradCAM": 41.52, "LRP": 43.49,
                              "partial LRP": 50.49, "CVPR 2021": 54.16},
    "positive-perturbation": {"rollout": 20.05, "raw attention": 23.99, "GradCAM": 34.06, "LRP": 41.94,
                              "partial LRP": 19.64, "CVPR 2021": 17.03},
    "pixel-accuracy": {"rollout": 73.54, "raw attention": 67.84, "GradCAM": 64.44, "LRP": 51.09, "partial LRP": 76.31,
                       "CVPR 2021": 79.70},
    "map": {"rollout": 84.76, "raw attention": 80.24, "GradCAM": 71.60, "LRP": 55.68, "partial LRP": 84.67,
            "CVPR 2021": 86.03},
    "miou": {"rollout": 55.42, "raw attention": 46.37, "GradCAM": 40.82, "LRP": 32.89, "partial LRP": 57.94,
             "CVPR 2021": 61.95},
}  # fmt: skip
