"""Several stored runs: from folders and globs to runs, and to comparisons of each side with the first."""

import glob
from collections.abc import Sequence
from pathlib import Path

import msgspec

from inferometer.analysis.comparable import STAGES_DIFFER, doubts, unusable
from inferometer.analysis.comparison import Compared, Side, by_seed, compare
from inferometer.analysis.fail_if import FailIf
from inferometer.analysis.fail_if import parse as parse_condition
from inferometer.conduct.experiment import Experiment, kind_in, open_experiment, read_list
from inferometer.conduct.pairs import pairs_of
from inferometer.conduct.remote import fetched, local_names
from inferometer.conduct.saving import open_run
from inferometer.config.storage import is_remote
from inferometer.errors import UserError
from inferometer.store.folder import MANIFEST, RUNS


def parse_conditions(texts: Sequence[str]) -> tuple[FailIf, ...]:
    """Parse `--fail-if`. Raises UserError with the column at fault."""
    return tuple(dict.fromkeys(parse_condition(text) for text in texts))


def compare_stored(names: Sequence[str], conditions: Sequence[FailIf] = (), force: bool = False) -> list[Compared]:
    """Compare each side with the first. A name is a run's folder, a folder of repeated runs, a glob, or a folder of pairs."""
    if len(names) == 1:
        names = local_names(names)
    if len(names) == 1 and kind_in(Path(names[0])) == "ab":
        return [compare_pairs(open_experiment(Path(names[0])), conditions, force)]
    if len(names) < 2:
        raise UserError(
            "a comparison needs at least two sides", "give two runs, such as inferometer compare runs/A runs/B"
        )
    sides = [Side(name, tuple(open_run(str(run)) for run in runs_of(name))) for name in names]
    first, *others = sides
    return [compare_sides(first, other, conditions, force) for other in others]


def compare_sides(
    a: Side, b: Side, conditions: Sequence[FailIf] = (), force: bool = False, pairs: bool | None = None
) -> Compared:
    """Compare two sides. Raises UserError when they cannot be compared, or should not be and there is no `force`."""
    if reasons := [*unusable(a), *unusable(b)]:
        raise UserError(f"{reasons[0]}: there is nothing to compare", "compare other runs, or run it again")
    reasons = doubts([a, b])
    if reasons and not force:
        more = f" (and {len(reasons) - 4} more reasons)" if len(reasons) > 4 else ""
        raise UserError(
            f"these runs should not be compared: {'; '.join(reasons[:4])}{more}",
            "compare runs of the same workload, model, load and objectives, or add --force",
        )
    if STAGES_DIFFER in reasons:
        raise UserError(STAGES_DIFFER, "compare runs with the same stages")
    if pairs is None:
        b, pairs = by_seed(a, b)
    found = compare(a, b, conditions, pairs)
    notes = (*(f"compared by force: {each}" for each in reasons), *found.notes)
    return Compared(a, b, msgspec.structs.replace(found, notes=notes))


def compare_pairs(experiment: Experiment, conditions: Sequence[FailIf] = (), force: bool = False) -> Compared:
    """Compare the pairs of `inferometer ab`. Pairs with an INVALID run are left out unless there is `force`."""
    measured = pairs_of(experiment)
    valid = [pair for pair in measured if all(summary.verdict == "VALID" for _, summary in pair)]
    left_out = len(measured) - len(valid)
    kept = measured if force else valid
    if not kept:
        failed = dict.fromkeys(
            check.name for pair in measured for _, summary in pair for check in summary.checks if check.status == "fail"
        )
        why = f": all {len(measured)} have an INVALID run ({', '.join(failed)})" if measured else ""
        raise UserError(f"{experiment.folder}: there is no pair to compare{why}", "measure again, or add --force")
    a, b = (Side(label, tuple(pair[index] for pair in kept)) for index, label in enumerate(experiment.listed.sides))
    # Two servers that were named on the command line may well differ in their model: that is a note, not a refusal.
    made = compare_sides(a, b, conditions, True, pairs=len(kept) > 1)
    notes = [note.removeprefix("compared by force: ") for note in made.found.notes]
    if left_out and not force:
        notes.insert(0, f"{left_out} of {len(measured)} pairs were left out because a run is INVALID")
    return msgspec.structs.replace(made, found=msgspec.structs.replace(made.found, notes=tuple(notes)))


# --- which runs a name stands for -----------------------------------------------------------------------------------


def runs_of(name: str) -> list[Path]:
    """The folders of the runs that a name stands for. Raises UserError when a glob matches no folder."""
    return [run for folder in folders_of(name) for run in runs_in(folder) or [folder]]


def folders_of(name: str) -> list[Path]:
    """The folders that a name stands for, each of a run or of several. Raises UserError when a glob matches no folder."""
    if is_remote(name):
        return fetched(name)
    folders = [Path(name)]
    if is_glob(name):
        matches = sorted(glob.glob(name))  # noqa: PTH207 - Path.glob takes no absolute patterns
        folders = [path for path in map(Path, matches) if path.is_dir() and not path.is_symlink()]  # LATEST is a link
    if not folders:
        raise UserError(f"{name}: no folder matches", "give the folder of a run, such as runs/LATEST")
    return folders


def is_glob(name: str) -> bool:
    """Whether the name is a pattern, not that of a folder."""
    return glob.has_magic(name) and not Path(name).exists()


def runs_in(folder: Path) -> list[Path]:
    """The runs in a folder that is not itself a run; empty if there are none."""
    if not folder.is_dir() or (folder / MANIFEST).exists():
        return []
    if (folder / RUNS).exists():
        return [folder / each.run for each in read_list(folder).runs if each.run]
    return sorted(each.parent for each in folder.glob(f"*/{MANIFEST}") if not each.parent.is_symlink())
