"""The command line: thin, and quick to start. Each command imports what it needs when it runs."""

from __future__ import annotations

import sys
import traceback

import click

from conformance._version import __version__
from conformance.cli.bench import bench_command
from conformance.cli.diff import diff_command
from conformance.cli.explain import explain_command
from conformance.cli.faults import faults_command
from conformance.cli.listing import engines_command, schema_command
from conformance.cli.merge import merge_command
from conformance.cli.plan import plan_command
from conformance.cli.probe import probe_command
from conformance.cli.publish import publish_command
from conformance.cli.run import run_command
from conformance.cli.setup import setup_command
from conformance.cli.verify import verify_command
from conformance.errors import ConformanceError
from conformance.text import excerpt

LONGEST_MESSAGE = 2000


class _Group(click.Group):
    def invoke(self, ctx: click.Context) -> object:
        # what a person got wrong is one sentence and exit status 2, never a traceback
        try:
            return super().invoke(ctx)
        except ConformanceError as exc:
            click.echo(f"Error: {excerpt(str(exc), LONGEST_MESSAGE)}", err=True)
            sys.exit(2)
        except (KeyboardInterrupt, click.Abort):
            click.echo("Interrupted: no verdict. Finished arms are kept.", err=True)
            sys.exit(130)
        except (click.ClickException, click.exceptions.Exit):
            raise
        except Exception:  # exit status 1 means NOT EXACT, and nothing else may end with it
            traceback.print_exc()
            click.echo("This is a defect of conformance and no verdict on any engine.", err=True)
            sys.exit(2)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="conformance")
def main() -> None:
    """Check statistically that an engine's speculative decoding samples from its target model."""


for _command in (
    run_command,
    bench_command,
    verify_command,
    diff_command,
    merge_command,
    plan_command,
    engines_command,
    setup_command,
    probe_command,
    publish_command,
    faults_command,
    explain_command,
    schema_command,
):
    main.add_command(_command)
