from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from skill_ttrl.rl.batch import EncodedDemonstration, pack, pack_demonstrations, with_advantages
from skill_ttrl.rl.micro_batch import cut_micro_batches, lay_out
from skill_ttrl.train.imitate import whole
from skill_ttrl.types import Completion, Group, Step, Task, Trajectory
from tests.sampled import per_item


def test_each_step_is_an_item_with_its_trajectorys_advantage(make_groups: Callable[..., list[Group]]) -> None:
    groups = make_groups(prompts=2, tries=2, turns=3)
    batch = with_advantages(pack(groups), groups, [0.1, 0.2, 0.3, 0.4])
    assert len(batch) == 12
    assert per_item(batch) == pytest.approx([0.1] * 3 + [0.2] * 3 + [0.3] * 3 + [0.4] * 3)
    assert batch.prompt_index_N.tolist() == [0] * 6 + [1] * 6


def test_micro_batches_hold_every_token_and_log_prob_in_its_place(make_groups: Callable[..., list[Group]]) -> None:
    groups = make_groups(prompts=3, tries=4)
    steps = [step for group in groups for trajectory in group.trajectories for step in trajectory.steps]
    batch = with_advantages(pack(groups), groups, [float(i) for i in range(12)])
    seen = []
    for rows in cut_micro_batches(batch, torch.arange(12), sequences=5, packed=False):
        micro_batch = lay_out(batch, rows, 39)
        flat, slots = micro_batch.tokens_N_T.flatten(), micro_batch.slots_K
        assert torch.equal(flat[micro_batch.positions_Q[micro_batch.rows_K] + 1], micro_batch.targets_K)
        assert torch.equal(micro_batch.response_mask_N_R.flatten().nonzero().squeeze(1), slots)
        for row, index in enumerate(int(a) for a in micro_batch.advantages_N_R[:, 0]):
            seen.append(index)
            completion = steps[index].completion
            assert completion is not None
            tokens = (*steps[index].prompt_ids, *completion.token_ids)
            padded = micro_batch.tokens_N_T[row].tolist()
            assert tuple(padded[: len(tokens)]) == tokens and set(padded[len(tokens) :]) <= {39}
            trained = micro_batch.targets_K[slots // micro_batch.response_mask_N_R.shape[1] == row]
            assert tuple(trained.tolist()) == completion.token_ids
            log_probs = micro_batch.old_log_probs_N_R[row, : len(completion.logprobs)].tolist()
            assert log_probs == pytest.approx(list(completion.logprobs))
            assert not micro_batch.old_log_probs_N_R[row, len(completion.logprobs) :].any()
    assert sorted(seen) == list(range(12))
    lengths = batch.lengths_N[torch.tensor(seen)].tolist()
    assert lengths == sorted(lengths)


def test_what_cannot_be_packed_is_refused(make_groups: Callable[..., list[Group]]) -> None:
    (group,) = make_groups(prompts=1, tries=1)
    with pytest.raises(ValueError, match="one advantage for each of 1 trajectories, found 2"):
        with_advantages(pack([group]), [group], [1.0, 2.0])
    step = group.trajectories[0].steps[0]
    bare = replace(step, completion=Completion("", (1, 2), (), "stop"))
    with pytest.raises(ValueError, match="2 tokens has 0 log-probs"):
        pack([replace(group, trajectories=(replace(group.trajectories[0], steps=(bare,)),))])
    with pytest.raises(ValueError, match="no prompt tokens"):
        pack_demonstrations([EncodedDemonstration([], [1])])
    with pytest.raises(ValueError, match="empty response"):
        pack_demonstrations([EncodedDemonstration([1], [])])


def test_inserted_tokens_are_part_of_the_item_and_are_not_trained() -> None:
    completion = Completion("a b c", (5, 6, 7), (-0.1, 0.0, -0.3), "stop", completion_mask=(True, False, True))
    task = Task("t", "env")
    step = Step("question", "a b c", 0.0, True, False, (1, 2), completion)
    batch = pack([Group(task, (Trajectory(task, (step,), "c", "terminated"),))])

    assert batch.tokens_F.tolist() == [1, 2, 5, 6, 7]
    assert batch.trained_F.tolist() == [False, False, True, False, True]
    micro = lay_out(batch, torch.tensor([0]), 0)
    assert micro.targets_K.tolist() == [5, 7]


def test_labels_are_learnt_in_the_place_of_what_was_executed() -> None:
    labelled = EncodedDemonstration([1], [3, 4, 5], [True, True, False], [3, 8, 5])
    batch = pack_demonstrations([labelled, EncodedDemonstration([1], [3, 9])])
    for packed in (False, True):
        micro_batch = lay_out(batch, torch.arange(2), 0, packed=packed)
        assert micro_batch.targets_K.tolist() == [3, 8, 3, 9]
    padded = lay_out(batch, torch.arange(2), 0)
    assert padded.tokens_N_T.tolist() == [[1, 3, 4, 5], [1, 3, 9, 0]]  # the model sees what was executed
    assert whole(EncodedDemonstration([1, 2], [3, 4], None, [3, 8])).labels == (2, 3, 8)
    with pytest.raises(ValueError, match="3 response tokens, but labels of 2"):
        pack_demonstrations([labelled._replace(labels=[3, 8])])
