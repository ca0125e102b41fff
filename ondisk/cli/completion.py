"""Print a script that makes a shell complete commands, options and paths.

ondisk completion bash > ~/.local/share/bash-completion/completions/ondisk
ondisk completion zsh > ~/.zfunc/_ondisk   # a folder of fpath, before compinit runs
ondisk completion fish > ~/.config/fish/completions/ondisk.fish
"""

from __future__ import annotations

import argparse

from ondisk.cli.arguments import path
from ondisk.cli.output import Output
from ondisk.cli.streams import write_stdout
from ondisk.errors import EXIT_DONE

_DIRECTORIES = ("dataset", "datasets", "to")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")
    parser.set_defaults(json=False)


def run(arguments: argparse.Namespace, output: Output) -> int:
    import shtab  # here, because no other command waits for it

    from ondisk.cli import whole_parser

    parser = whole_parser()
    for command in parser._subparsers._group_actions[0].choices.values():  # type: ignore[union-attr]  # it has commands
        for action in command._actions:
            if action.type is path:
                action.complete = shtab.DIRECTORY if action.dest in _DIRECTORIES else shtab.FILE
    write_stdout([shtab.complete(parser, arguments.shell).encode()])
    return EXIT_DONE
