"""``envbuild completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "fish", "zsh"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell, to be read when it starts.

    For bash, add to ~/.bashrc: eval "$(envbuild completion bash)"
    """
    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(ctx.find_root().command, {}, "envbuild", "_ENVBUILD_COMPLETE").source())
