"""`skillttrl train --seeds 0,1,2`: one run a seed in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from skill_ttrl.config import SkillTTRLConfig
from skill_ttrl.errors import ConfigError, RunFolderError
from skill_ttrl.progress import Progress
from skill_ttrl.runs.folder import config_differences
from skill_ttrl.runs.reader import read_run
from skill_ttrl.stages.reports.compare import SEEDS, Seeds, is_seeds, named_seeds, read_seeds
from skill_ttrl.stages.setup.defaults import with_defaults
from skill_ttrl.stages.setup.open_run import Resume
from skill_ttrl.stages.train import run
from skill_ttrl.storage.files import wrap_os_errors, write_atomic


def run_seeds(
    config: SkillTTRLConfig,
    output: str | Path,
    seeds: Sequence[int],
    *,
    resume: Resume | None = None,
    progress: Callable[[Path], Progress] | None = None,
    source: str | None = None,
) -> Seeds:
    """Run `config` once under each seed, one after another, into `output/seed-N`.

    Args:
        config: what to do; its own seed is not looked at.
        output: folder of the runs; new, or one of the same seeds with `resume`.
        seeds: which, each once.
        resume: "auto" continues: seeds that have finished with exactly these settings are skipped. See `stages.train.run`.
        progress: makes the progress of each run, from its folder.
        source: text of the config file, kept with each run.

    Raises:
        ConfigError: no seed, or one twice, was named.
        RunFolderError: `output` holds other seeds or something else.
        SkillTTRLError: see `stages.train.run`; what was done is kept.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"List each seed once, such as 0,1,2; found {', '.join(map(str, seeds)) or 'none'}.")
    output = Path(output)
    _begin(output, config.name, seeds, resume)
    for seed in seeds:
        folder = output / f"seed-{seed}"
        mine = config.model_copy(update={"seed": seed}, deep=True)
        if resume is not None and _has_ended(folder, mine):
            continue
        run(mine, folder, resume=resume, progress=progress(folder) if progress else None, source=source)
    return read_seeds(output)


def _has_ended(folder: Path, config: SkillTTRLConfig) -> bool:
    """Tell whether nothing is left to do: other settings lengthen the run or are refused, as they are without `--seeds`."""
    if not (folder / "summary.json").is_file():
        return False
    return not config_differences(read_run(folder).config, with_defaults(config))


def _begin(output: Path, name: str, seeds: Sequence[int], resume: str | None) -> None:
    if is_seeds(output):
        before = named_seeds(output)[1]
        if resume is None:
            raise RunFolderError(
                f"{output} already holds runs with the seeds {', '.join(map(str, before))}. Continue them with --resume auto, or choose "
                "another --output."
            )
        if before != list(seeds):
            raise RunFolderError(
                f"{output} was started with the seeds {', '.join(map(str, before))}, not {', '.join(map(str, seeds))}. Use the same "
                "seeds, or choose another --output."
            )
        return
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise RunFolderError(f"{output} is not empty and holds no runs of --seeds. Choose another --output.")
    with wrap_os_errors("make", output):
        output.mkdir(parents=True, exist_ok=True)
        write_atomic(output / SEEDS, json.dumps({"name": name, "seeds": list(seeds)}, indent=2).encode() + b"\n")
