import os

import hypothesis
import torch

# before transformers is imported anywhere: nothing is downloaded, and neither bars nor notes are printed
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", TRANSFORMERS_VERBOSITY="error")

torch.set_num_threads(1)

hypothesis.settings.register_profile("whence", derandomize=True, deadline=None, max_examples=25)
hypothesis.settings.load_profile("whence")
