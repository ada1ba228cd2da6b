"""The methods of each table, under the names that the papers give them."""

from __future__ import annotations

#: Ali et al., ICML 2022, table 2. Their code sums the columns of A-Last and Rollout over all rows; of attention flow
#: that would be a flow for every pair of tokens, so here it is of the row that the classifier reads.
ICML = [
    "Random=random",
    "A-Last=attention:rows=all",
    "A-Flow=attention-flow",
    "Rollout=rollout:rows=all",
    "GAE=generic-attention",
    "GI=gradient-x-input",
    "LRP (AH)=conservative-lrp:norms=false",
    "LRP (LN)=conservative-lrp:heads=false",
    "LRP (AH+LN)=conservative-lrp",
]

#: methods since, and the CVPR 2021 method, for texts; `pa-lrp` read at positions is `attn-lrp`
NEWER_TEXT = [
    "transformer-attribution",
    "attn-lrp",
    "res-lrp",
    "libragrad",
    "legrad",
    "token-tm",
]

#: Chefer et al., CVPR 2021, tables 1 and 2
CVPR = [
    "rollout",
    "raw attention=attention",
    "GradCAM=grad-cam",
    "LRP=lrp",
    "partial LRP=partial-lrp",
    "CVPR 2021=transformer-attribution",
]

#: methods since, and the other two founding ones, for pictures
NEWER_IMAGE = [
    "generic-attention",
    "conservative-lrp",
    "gradient-x-input",
    "attn-lrp",
    "res-lrp",
    "libragrad",
    "legrad",
    "bi-attention",
    "token-tm",
    "random",
]
