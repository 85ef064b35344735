"""Metrics of the skill bank: operations in rollouts, merging, evolution, text edits, the gate."""

from __future__ import annotations

from skill_ttrl.metrics.metric import COUNT, FLAG, NUMBER, REWARD, SHARE, TOKENS, Metric, Section

BANK = "with a skill bank"
MERGED = "`skills.update: merge`"
BY_MODEL = f"{MERGED}, where a model merges"
LOOKS = "steps in which `evolve` looks"
EDITS = "steps in which `optimize.every` edits the bank"
DECIDES = "where `skills.gate` decides on a change"
RECHECKS = "`skills.gate.recheck_every`"

SKILLS = Section(
    "Skills",
    "Operations and merging: [skill-agent.md](skill-agent.md#reading-a-run); evolution: [skills.md](skills.md#evolve); text edits: "
    "[gate.md](gate.md#text-edits-between-weight-updates); the gate: [the same page](gate.md).",
    (
        Metric(
            "retrieve_rate",
            *SHARE,
            "share of rollouts that wrote a readable query",
            BANK,
            trouble="0, where it should retrieve: the model has never seen the form; does not rise: the base hardly follows what it is shown",
            change="a cold start with the form, or an `agent.template` that shows it; `skill_op_parse_errors`",
        ),
        Metric("generate_rate", *SHARE, "share of rollouts that wrote a readable new skill", BANK),
        Metric("evolve_rate", *SHARE, "share of rollouts that wrote a readable rewrite of a skill", BANK),
        Metric(
            "retrieval_hit_rate",
            *SHARE,
            "share of rollouts that were given a skill",
            BANK,
            trouble="below `retrieve_rate`: nothing is found",
            change="`skills.min_score`, `skills.max_retrievals`, `skills.enabled`; an empty bank",
        ),
        Metric(
            "skill_op_parse_errors",
            "a rollout",
            "[0, ∞)",
            "operations that could not be read, mean over rollouts",
            BANK,
        ),
        Metric("retrieved_tokens", *TOKENS, "tokens that were inserted, mean over rollouts", BANK),
        Metric("skills_generated", *COUNT, "texts that winners wrote", MERGED),
        Metric("skills_extracted", *COUNT, "techniques found in the winners' solutions", MERGED),
        Metric(
            "skills_added",
            *COUNT,
            "new skills",
            MERGED,
            trouble="stays 0: nothing was written, no rollout won, or the bank has the texts already",
            change="`generate_rate`; rewards that are all 0",
        ),
        Metric("skills_used", *COUNT, "skills of the bank whose use was counted", MERGED),
        Metric(
            "skills_evolved",
            *COUNT,
            "replacements of skills, and skills that `evolve` added",
            f"{MERGED}; also with `evolve`",
            trouble="0 with failures: they share nothing, the bank says it already, or it is full",
            change="`left_out` in `evolve.jsonl`",
        ),
        Metric(
            "skills_rejected",
            *COUNT,
            "what the merge left out: too many for a problem, rewrites that say no more, empty texts, …",
            MERGED,
            trouble="high with a low `skills_added`",
            change="`skillttrl merge RUN --bank other --merger openai --dry-run --json` lists the reasons",
        ),
        Metric("skills_merge_requests", *COUNT, "questions to language models", BY_MODEL),
        Metric(
            "skills_merge_failed",
            *COUNT,
            "questions without a usable answer, whose part was left out",
            BY_MODEL,
            healthy="[0, 0]",
            trouble="above 0: the run's warning has the first reason",
            change="`structured` or a larger `max_tokens` of the endpoint (docs/endpoints.md)",
        ),
        Metric(
            "skills_merge_fallback", *COUNT, "questions without a usable answer, whose part the heuristic did", BY_MODEL
        ),
        Metric(
            "skills_evicted",
            *COUNT,
            "skills that went stale, or that failures evicted",
            "`skills.stale_after_steps`, `evolve`",
        ),
        Metric(
            "evolve_types_below",
            *COUNT,
            "types of task below the threshold; 0: each is above it, or none had `evolve.min_episodes`",
            LOOKS,
        ),
        Metric("evolve_failures", *COUNT, "failures that were analysed", LOOKS),
        Metric("optimize/failures", *COUNT, "failed rollouts that were reflected on", EDITS),
        Metric(
            "optimize/edits",
            *COUNT,
            "edits that could be applied to the text of the bank",
            EDITS,
            trouble="stays 0: failures without an answer exclude nothing, and edits whose target is not in the document are skipped",
            change="the status of each edit in `optimize.jsonl`",
        ),
        Metric("optimize/changes", *COUNT, "skills that changed by the edits", EDITS),
        Metric(
            "gate/accepted",
            *FLAG,
            "decision on the changes that were collected",
            DECIDES,
            trouble="0 with a positive `gate/difference`: too little power",
            change="more `skills.gate.rollouts_per_task` or `skills.gate.tasks`, or fewer decisions (`skills.gate.every`)",
        ),
        Metric("gate/changes", *COUNT, "changes that were decided on", DECIDES),
        Metric("gate/difference", *NUMBER, "paired difference of the mean outcome with the changes", DECIDES),
        Metric("gate/p_value", "probability", "[0, 1]", "one-sided p-value of the difference", DECIDES),
        Metric(
            "gate/rolled_back",
            *FLAG,
            "1 where the bank went back to the version before its last accepted change",
            RECHECKS,
        ),
        Metric("gate/recheck_difference", *NUMBER, "how much better that version did", RECHECKS),
        Metric("gate/rollouts", *COUNT, "rollouts that the decisions of the step took", "where `skills.gate` decides"),
        Metric(
            "bank_skills",
            *COUNT,
            "size of the bank after the step",
            BANK,
            trouble="grows with useless skills, or without a rise of the reward",
            change="`skills.max_skills`, `skills.max_skills_per_problem`, `skills.stale_after_steps`; `skills.prompt_top_k`; each skill's uses: `skillttrl "
            "inspect RUN/bank`",
        ),
        Metric("bank_version", *COUNT, "version of the bank after the step", BANK),
        Metric(
            "skills_conflicts",
            *COUNT,
            "changes of the step that did not fit the newest version of a shared bank: another run had changed or evicted the skill, or added the same",
            "`skills.shared`",
            trouble="most changes of each step",
            change="fewer runs on one bank, or a larger `skills.max_skills`; the reasons: `skillttrl skills show BANK --history`",
        ),
        Metric(
            "bank_versions/present_reward",
            *REWARD,
            "mean reward of the rollouts that saw the present version of the bank",
            "`skills.versions_per_group` above 1",
        ),
        Metric(
            "bank_versions/older_reward",
            *REWARD,
            "mean reward of the rollouts that saw an older version",
            "`skills.versions_per_group` above 1",
        ),
    ),
)
