"""A person's extra arguments, freed of what an adapter sets itself."""

import pytest

from providers.arguments import Takes, foreign_args

OWN = {
    "-p": Takes.NOTHING,
    "--print": Takes.NOTHING,
    "--format": Takes.VALUE,
    "-r": Takes.OPTIONAL_VALUE,
    "--resume": Takes.OPTIONAL_VALUE,
}


@pytest.mark.parametrize(
    "args,kept",
    [
        ([], []),
        (["--add-dir", "a", "b"], ["--add-dir", "a", "b"]),
        (["-p", "--print", "--max-turns", "3"], ["--max-turns", "3"]),
        (["--format", "text", "--x"], ["--x"]),
        (["--format=text", "--x"], ["--x"]),
        (["--format", "--x"], []),
        (["--format"], []),
        (["--resume", "id", "--x"], ["--x"]),
        (["--resume", "--x"], ["--x"]),
        (["-r", "id"], []),
        (["-rid", "-px"], []),
        (["--printer", "--formatting=1"], ["--printer", "--formatting=1"]),
        (["--x", "--", "--y", "prompt"], ["--x"]),
    ],
)
def test_own_flags_are_dropped_with_their_values(args: list[str], kept: list[str]) -> None:
    """What the adapter sets itself goes, in each way of writing it; the rest keeps its order."""
    assert foreign_args(args, OWN) == tuple(kept)
