"""`sm120 mutate`: do a patch's tests notice when the patch is wrong?"""

from __future__ import annotations

from typing import Annotated

import typer

from sm120.integration.build.identity import load_recipe
from sm120.integration.build.runtime import pristine_of
from sm120.integration.build.tree import patched_tree
from sm120.integration.common.checkout import find_checkout
from sm120.integration.common.console import make_console
from sm120.integration.common.refusal import Refusal, there_are
from sm120.integration.series.completion import slugs
from sm120.integration.series.mutants import Mutant
from sm120.integration.upstream.mutants_page import record
from sm120.integration.upstream.mutate import mutate

console = make_console()


def mutate_command(
    slug: Annotated[str, typer.Argument(help="a patch", autocompletion=slugs)],
    workers: Annotated[int, typer.Option(min=1, help="probes at once; each takes a core and about 2 GiB")] = 1,
    keep: Annotated[bool, typer.Option("--record", help="add the score to patches/mutants.json and its page")] = False,
) -> None:
    """Run SLUG's probe on every mutant of the patch. Exit 1 when one survives. An interrupted run goes on where it was."""
    checkout = find_checkout()
    recipes = [load_recipe(checkout, name) for name in checkout.projects()]
    known = {patch.slug: (recipe, patch) for recipe in recipes for patch in recipe.series.patches}
    if slug not in known:
        raise Refusal("unknown-slug", f"no patch is called {slug!r}{there_are(slug, [*known])}")
    recipe, patch = known[slug]
    trees = checkout.build / "trees"
    tree = patched_tree(pristine_of(checkout, recipe), recipe.series, recipe.overlay, trees / recipe.name)

    def told(done: int, of: int, mutant: Mutant, outcome: str) -> None:
        if outcome != "caught":
            say(f"{done}/{of} {outcome}: {mutant.kind}, {mutant.file}:{mutant.line}: {mutant.says}")

    score = mutate(checkout, patch, tree, workers=workers, told=told)
    say(f"{slug}: {score.caught} of {score.mutants} mutants caught ({score.caught / score.mutants:.0%})")
    for survivor in score.survivors:
        say(f"    {survivor['kind']}, {survivor['file']}:{survivor['line']}: {survivor['says']}")
    for hunk in score.moved:
        say(f"    not mutated, a later patch has rewritten it: {hunk}")
    if keep:
        record(checkout, {slug: score})
    raise typer.Exit(1 if score.survivors else 0)


def say(line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
