"""FSDP: weights that two processes of this machine share; gathered for an explanation, or refused."""

import datetime
import json
import multiprocessing

import pytest
import torch
from torch import nn

import whence

pytest.importorskip("torch.distributed.fsdp")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("torch was built without gloo", allow_module_level=True)

SECONDS = 120
METHODS = ["conservative-lrp", "gradient-x-input", "rollout", "lrp", "libragrad", "integrated-gradients", "occlusion"]
IDS = torch.randint(0, 30, (2, 6), generator=torch.Generator().manual_seed(1))


class Model(nn.Module):
    """A small encoder with a class for each text."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(30, 16), nn.Linear(16, 3)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True) for _ in range(2)
        )

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


def whole():
    return Model().double().eval()


def sharded(mesh, **options):
    from torch.distributed.fsdp import fully_shard

    model = whole()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def hooks(model):
    return [list(table.values()) for m in model.modules() for table in (m._forward_hooks, m._forward_pre_hooks)]


def refusal(model):
    try:
        whence.explain(model, IDS)
    except whence.ModelError as error:
        return str(error)
    return ""


def work(rank, directory):
    """Explain sharded models in one of two processes, and write down what came of it."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy

    torch.set_num_threads(1)
    store, most = f"file://{directory}/store", datetime.timedelta(seconds=SECONDS)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=most)
    mesh = init_device_mesh("cpu", (2,))
    model = sharded(mesh)
    before = [id(p) for p in model.parameters()], hooks(model)
    found = {method: whence.explain(model, IDS, method, 1).scores.tolist() for method in METHODS}
    after = [id(p) for p in model.parameters()], hooks(model)
    with torch.no_grad():
        same = bool(torch.allclose(model(IDS), whole()(IDS)))
    found |= {
        "left": before == after,
        "runs": same,
        "flat": refusal(FullyShardedDataParallel(whole(), device_id="cpu")),
    }
    found["cast"] = refusal(sharded(mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)))
    with open(f"{directory}/{rank}.json", "w") as file:
        json.dump(found, file)
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of the two processes found, by name."""
    directory = tmp_path_factory.mktemp("ranks")
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=work, args=(rank, str(directory)), daemon=True) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(SECONDS)
    for rank in ranks:
        if rank.is_alive():
            rank.kill()
    assert [rank.exitcode for rank in ranks] == [0, 0]
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("method", METHODS)
def test_scores_of_a_sharded_model_are_those_of_the_whole_model(found, method):
    expected = whence.explain(whole(), IDS, method, 1).scores
    for process in found:
        torch.testing.assert_close(torch.tensor(process[method], dtype=expected.dtype), expected, rtol=1e-9, atol=1e-12)


def test_a_sharded_model_is_left_as_found(found):
    assert all(process["left"] and process["runs"] for process in found)


def test_flat_parameters_and_casts_are_refused(found):
    for process in found:
        assert "FullyShardedDataParallel (FSDP1)" in process["flat"]
        assert "mixed-precision policy" in process["cast"]
