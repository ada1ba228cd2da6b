"""The comparison with other libraries, with a peer made here."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

import whence
from tools.benchmarks.peers import cases, lxt_, table
from tools.benchmarks.peers.comparison import Comparison, agreement, label
from tools.benchmarks.peers.run import PEERS


def tiny():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertForSequenceClassification(BertConfig(vocab_size=50, **sizes))
    return cases.case(model, {"input_ids": torch.randint(50, (1, 7))})


@pytest.fixture(autouse=True)
def _tiny_case(monkeypatch):
    monkeypatch.setitem(cases.CASES, "tiny", tiny)


def gradient_x_input(case):
    """What a peer would do: gradient × input of the words' embeddings."""

    def run():
        x = case.model.get_input_embeddings()(case.inputs["input_ids"]).requires_grad_()
        value = case.model(inputs_embeds=x).logits[0, case.target]
        return (x * torch.autograd.grad(value, x)[0]).sum(-1)[0].detach()

    return run


def compared(theirs, **more):
    options = {"whence": "gradient-x-input", "options": lambda case: {"at": "token"}} | more
    return Comparison("no-such-peer", "its method", "tiny", theirs, **options)


def test_the_same_method_agrees_and_is_measured():
    row = compared(gradient_x_input).row(repeats=1)
    assert row["difference"] < 1e-6
    assert row["rank_correlation"] == pytest.approx(1)
    assert row["whence"] == 'gradient-x-input(at="token")'
    assert all(row["time"][who] > 0 for who in ("theirs", "ours", "warm"))
    assert set(row["memory"]) == {"plain", "theirs", "ours", "warm"}
    assert {"date", "commit"} <= row.keys()
    assert not table.disagreeing([row])


def test_another_target_and_another_scale():
    def probability(outputs):
        return outputs.logits.softmax(-1)[:, 0]

    def theirs(case):
        run = whence.explain(case.model, case.inputs, "gradient-x-input", probability, at="token")
        return lambda: run.scores[0] * 2

    made = compared(theirs, options=lambda case: {"at": "token", "target": probability}, finish=lambda s: s * 2)
    assert made.row(1)["difference"] == 0


@pytest.mark.parametrize(
    ("scores", "error"),
    [
        (torch.ones(6), "ValueError: The peer has 6 scores, Whence 7."),
        (torch.full((7,), float("nan")), "ValueError: The peer's scores are not finite."),
    ],
)
def test_what_cannot_be_compared_is_a_row_with_its_error(scores, error):
    row = compared(lambda case: lambda: scores).row(1)
    assert row["error"] == error
    assert row["version"] == "not installed"


def test_a_peer_that_is_not_there_is_a_row_with_its_error():
    def theirs(case):
        import no_such_peer

        return no_such_peer.explain

    assert compared(theirs).row(1)["error"] == "ModuleNotFoundError: No module named 'no_such_peer'"


def test_agreement():
    ours = torch.tensor([1.0, -4.0, 2.0])
    assert agreement(ours, ours) == {"difference": 0, "rank_correlation": pytest.approx(1)}
    assert agreement(torch.tensor([[1.0, -4.0, 3.0]]), ours)["difference"] == pytest.approx(0.25)
    assert agreement(-ours, ours)["rank_correlation"] == pytest.approx(-1)


def test_label():
    assert label("lrp", {}) == "lrp"
    options = {"at": "token", "steps": 3, "baseline": torch.zeros(2, 3), "target": tiny}
    assert label("lrp", options) == 'lrp(at="token", steps=3, baseline=tensor[2, 3], target=tiny)'


ROW = {
    "peer": "a", "version": "1.0", "method": "m", "case": "bert", "whence": "lrp", "same": True, "note": "",
    "torch": "2", "transformers": "5", "threads": 2, "difference": 1e-6, "rank_correlation": 1.0,
    "time": {"theirs": 2.0, "ours": 1.25, "warm": 0.5},
    "memory": {"theirs": 20.0, "ours": 10.0, "warm": 8.0, "plain": 9.0},
}  # fmt: skip


def failed(**more):
    return {k: v for k, v in ROW.items() if k not in ("difference", "rank_correlation", "time", "memory")} | more


def test_table():
    rows = [ROW, ROW | {"peer": "b", "same": False, "difference": 3.0}, failed(error="OSError: a | b")]
    page = table.markdown(rows)
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(rows)
    assert {line.replace("\\|", "").count("|") for line in lines} == {len(table.HEAD) + 1}
    assert "| a | bert | m | `lrp` | 1e-06 | 1.000 | 2 | 1.25 | 0.5 | 20 | 10 | 8 | 9 |  |" in lines
    assert "`OSError: a \\| b`" in lines[3]
    assert "another method" in lines[4]
    assert page.endswith("- a 1.0, b 1.0: torch 2, transformers 5, threads: 2\n")


def test_rows_in_which_a_peer_is_ahead_are_marked():
    ahead = ROW | {"time": {"theirs": 0.4, "ours": 1.25, "warm": 0.5}}
    level = ROW | {"time": {"theirs": 0.48, "ours": 1.25, "warm": 0.5}}
    larger = ROW | {"memory": {"theirs": 20.0, "ours": 26.0, "plain": 9.0}}
    assert table.behind([ROW, ahead, level, larger, failed(error="E")]) == [ahead, larger]
    assert "| 0.4 | 1.25 | **0.5** |" in table.markdown([ahead])
    assert "| 20 | **26** | - | 9 |" in table.markdown([larger])


def test_a_method_that_is_not_captured_has_no_warm_time():
    made = compared(lambda case: lambda: torch.ones(7), whence="occlusion", options=lambda case: {})
    assert made.warm(tiny(), {}) is None


def test_only_the_same_method_must_agree():
    wrong = [ROW | {"difference": 0.1}, ROW | {"difference": float("nan")}]
    assert table.disagreeing([ROW, *wrong, ROW | {"difference": 0.1, "same": False}, failed(error="E")]) == wrong
    assert "**1e-01**" in table.markdown(wrong)


def test_rows_of_other_peers_are_kept(tmp_path):
    file = tmp_path / "bench" / "peers.json"
    table.save([ROW, ROW | {"peer": "b"}], ["a", "b"], file)
    table.save([ROW | {"note": "again"}], ["a"], file)
    assert [(row["peer"], row["note"]) for row in table.load(file)] == [("b", ""), ("a", "again")]


def test_every_comparison_names_what_there_is():
    for peer, comparisons in PEERS.items():
        for made in comparisons:
            assert made.peer == peer
            assert made.case in cases.CASES
            assert made.whence in whence.list_methods()


def test_patches_are_undone_also_after_an_error(monkeypatch):
    class Layer:
        def forward(self):
            return "plain"

    def patch(target):
        target.original_forward, target.forward = target.forward, lambda self: "patched"
        return True

    lxt = types.ModuleType("lxt.efficient")
    lxt.monkey_patch = lambda module, rules: [change(target) for target, change in rules.items()]
    monkeypatch.setitem(sys.modules, "lxt", types.ModuleType("lxt"))
    monkeypatch.setitem(sys.modules, "lxt.efficient", lxt)
    with lxt_.patched({Layer: patch}):
        assert Layer().forward() == "patched"
    with pytest.raises(ZeroDivisionError), lxt_.patched({Layer: patch}):
        raise ZeroDivisionError
    assert Layer().forward() == "plain"
    assert not hasattr(Layer, "original_forward")
