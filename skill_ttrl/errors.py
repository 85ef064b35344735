"""Error types. Every message says what was requested, what was found and what to do.

    SkillTTRLError                 exit code
    ├── ConfigError      (ValueError)      2   a key, a value or a combination in a config
    │   ├── ExtensionError                 2   code of the user's own that a config names, and that raised
    │   └── DocumentError                  2   a skill document that cannot be read, or is too long for a prompt
    ├── DataError        (ValueError)      3   a data set: missing file, malformed line, absent column, nothing left
    ├── EnvError         (ValueError)      3   an environment that is not there or breaks the contract
    │   └── SplitError                     3   it has no tasks in a split
    ├── RunFolderError   (RuntimeError)    4   a run folder that is read-only, full, of another config or of another schema
    │   └── TrustError                     4   a foreign one whose config would run code, send secrets or write elsewhere
    ├── CheckpointError  (RuntimeError)    4   a checkpoint that is corrupt or does not fit
    ├── ModelError       (RuntimeError)    5   a model that cannot be loaded or does not fit the device
    ├── WeightSyncError  (RuntimeError)    5   a sampler that does not have the learner's weights
    ├── SkillBankError   (RuntimeError)    4   a bank of another schema, a damaged log, an id that is or is not there
    ├── EndpointError    (RuntimeError)    6   a remote language model that refuses or cannot be reached
    ├── BudgetError      (RuntimeError)    7   the budget for such models is spent
    ├── TrainingError    (RuntimeError)    8   nothing can be learned: no update is finite, or too few groups differ in reward
    ├── RankError        (RuntimeError)    9   one of several processes that train together is gone
    ├── WorkerError      (RuntimeError)    9   worker processes that cannot start or die again and again, or a Ray cluster that is not there
    └── MissingDependencyError (ImportError) 5  a package that an extra installs

The command line turns these into one line on stderr and the exit code (`EXIT_CODES`); anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

EXIT_CODES: Mapping[int, str] = {
    0: "done",
    1: "an unexpected error: a bug",
    2: "config or command line",
    3: "data or environment",
    4: "run folder, checkpoint or skill bank",
    5: "model, device or missing package",
    6: "a language model's server refuses or does not answer",
    7: "the budget for such models is spent",
    8: "nothing can be learned: no update is finite, or too few groups differ in reward",
    9: "one of several processes of a run has died, or a cluster cannot be used",
}
"""Exit codes of the command line; 128 + n after signal n."""


class SkillTTRLError(Exception):
    """Base of every error a user can cause or cure."""

    exit_code = 1


class ConfigError(SkillTTRLError, ValueError):
    """A configuration that cannot be used as it is."""

    exit_code = 2


class ExtensionError(ConfigError):
    """Code of the user's own that a config names (`module:function`) and that raised; the cause is what it raised."""


class DocumentError(ConfigError):
    """A skill document that cannot be read, or that leaves a prompt no room."""


class DataError(SkillTTRLError, ValueError):
    """A data set that cannot be read, or has nothing to train or measure on."""

    exit_code = 3


class EnvError(SkillTTRLError, ValueError):
    """An environment that cannot be found or does not keep the text contract."""

    exit_code = 3


class SplitError(EnvError):
    """An environment has no such split, or no tasks in it: whoever chose the split can say how another one is named."""


class RunFolderError(SkillTTRLError, RuntimeError):
    """A run folder that cannot be written, read or continued."""

    exit_code = 4


class TrustError(RunFolderError):
    """A run folder or bank that this user did not write and whose settings have power over this machine: `--trust` obeys it."""


class CheckpointError(SkillTTRLError, RuntimeError):
    """A checkpoint whose files are damaged or belong to something else."""

    exit_code = 4


class SkillBankError(SkillTTRLError, RuntimeError):
    """A skill bank that cannot be read, or a change that does not fit it."""

    exit_code = 4


class ModelError(SkillTTRLError, RuntimeError):
    """A model or tokenizer that cannot be loaded, or a device that is not there."""

    exit_code = 5


class WeightSyncError(SkillTTRLError, RuntimeError):
    """A sampler that did not take over the learner's weights: what it samples is not the policy's."""

    exit_code = 5


class EndpointError(SkillTTRLError, RuntimeError):
    """A request to a language model's server that came to nothing: refused, or failed as often as may be tried.

    Args:
        message: what was asked, what was answered, what to do.
        kind: what went wrong, as the ledger names it: "refused", "rate_limited", "timeout", "malformed", ….
    """

    exit_code = 6

    def __init__(self, message: str, kind: str = "failed") -> None:
        super().__init__(message)
        self.kind = kind


class BudgetError(SkillTTRLError, RuntimeError):
    """The tokens or the money that a run may spend are spent; what was begun is kept."""

    exit_code = 7


class TrainingError(SkillTTRLError, RuntimeError):
    """Training that changes nothing: loss or gradient of its updates is not finite, so that they are left out."""

    exit_code = 8


class RankError(SkillTTRLError, RuntimeError):
    """One of the processes that train together failed or is gone, so the others end too.

    Args:
        message: which, and why.
        exit_code: that of the error which ended it, where it is known.
        rank: which, where it is known.
        out_of_memory: the phase in which it ran out of memory (`sample`, `update`, `sft`); None: it did not, as far as is known.
    """

    exit_code = 9

    def __init__(
        self, message: str, *, exit_code: int = 9, rank: int | None = None, out_of_memory: str | None = None
    ) -> None:
        super().__init__(message)
        self.exit_code, self.rank, self.out_of_memory = exit_code, rank, out_of_memory


class WorkerError(SkillTTRLError, RuntimeError):
    """Worker processes that cannot start or die again and again, or a Ray cluster that is not there or does not fit this process."""

    exit_code = 9


OWN_ENVIRONMENT = ("inspect", "verifiers")
"""Extras whose packages conflict with those of the rest."""


class MissingDependencyError(SkillTTRLError, ImportError):
    """A package that is not installed; the message names the extra that brings it."""

    exit_code = 5

    @classmethod
    def for_extra(cls, feature: str, extra: str, package: str = "") -> MissingDependencyError:
        """The one wording for every missing optional package."""
        lacks = f"{package}, which is" if package else "packages that are"
        where = "a checkout, into an environment of its own," if extra in OWN_ENVIRONMENT else "a checkout"
        return cls(f"{feature} needs {lacks} not installed. Install in {where} with: pip install -e '.[{extra}]'")


TRAIN_PACKAGES = frozenset(
    "accelerate datasets gguf jaxtyping pandas peft pyarrow safetensors tokenizers torch transformers".split()
)
"""What the extra `train` installs for the trainer; all other modules import without it."""


@contextmanager
def naming_extra(feature: str) -> Iterator[None]:
    """Turn the failed import of a package of the extras `train` and `inspect` into the line that says how to install it.

    Raises:
        MissingDependencyError: such a package is not installed, and `feature` imported it.
    """
    try:
        yield
    except (ModuleNotFoundError, MissingDependencyError) as error:
        extra = "inspect" if error.name == "inspect_ai" else "train"
        if error.name not in (*TRAIN_PACKAGES, "inspect_ai"):
            raise
        found = MissingDependencyError.for_extra(feature, extra, error.name)
        found.name = error.name  # the outermost feature is what was asked for
        raise found from error


@contextmanager
def on_error(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo` where the block raises, also at a signal or an exit. The error goes on."""
    try:
        yield
    except BaseException:
        undo()
        raise


@contextmanager
def annotate_error(kind: type[SkillTTRLError], sentence: str) -> Iterator[None]:
    """Append a sentence to the message of errors of this kind: what it means here, and how to go on."""
    try:
        yield
    except kind as error:
        text = f"{error} {sentence}"
        raise (EndpointError(text, error.kind) if isinstance(error, EndpointError) else kind(text)) from None


def did_you_mean(asked: str, known: Iterable[str], listed_by: str = "") -> str:
    """A sentence for the end of a message: the closest known name, then all of them (empty when nothing is known).

    With `listed_by`, a command that lists them, more than eight give way to it and to the three closest.
    """
    names = sorted(set(known))
    if not names:
        return ""
    plain = {name.lower().replace("-", "_"): name for name in names}
    wanted = asked.lower().replace("-", "_")
    close = difflib.get_close_matches(wanted, plain, n=len(plain), cutoff=0.6)
    close.sort(key=lambda name: not _is_transposed(wanted, name))  # stable: else the closest stays first
    many = bool(listed_by) and len(names) > 8
    hint = f" Did you mean {' or '.join(repr(plain[name]) for name in close[: 3 if many else 1])}?" if close else ""
    return f"{hint} All: {listed_by}" if many else f"{hint} Known: {', '.join(names)}."


def _is_transposed(one: str, other: str) -> bool:
    """True if the texts are the same but for two neighbouring letters that have changed places."""
    differing = [at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b]
    if len(one) != len(other) or len(differing) != 2 or differing[1] - differing[0] != 1:
        return False
    at = differing[0]
    return one[at] + one[at + 1] == other[at + 1] + other[at]
