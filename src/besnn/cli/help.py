"""The help of a command: what it is for, its arguments and options, and examples to copy."""

import inspect
from typing import Any

from typer.core import TyperCommand


class Command(TyperCommand):
    """A command whose help is plain text: a usage line with what is required, and the examples of its `epilog` at the end."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the arguments, the required options and `[OPTIONS]`."""
        arguments = [each.metavar or str(each.name).upper() for each in self._arguments(ctx)]
        required = [f"{each.opts[0]} {each.metavar}" for each in self._options(ctx) if each.required]
        return [*arguments, *required, "[OPTIONS]"]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write all parts of the help."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        tables = {
            "Arguments": [(each.metavar, each.help) for each in self._arguments(ctx)],
            "Options": [each.get_help_record(ctx) for each in self._options(ctx)],
        }
        for title, records in tables.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if self.epilog:
            with formatter.section("Examples"):
                for line in inspect.cleandoc(self.epilog).splitlines():
                    formatter.write(f"  {line}\n")  # as it is: a command must not be wrapped

    def _arguments(self, ctx: Any) -> list[Any]:
        return [each for each in self.get_params(ctx) if each.param_type_name == "argument"]

    def _options(self, ctx: Any) -> list[Any]:
        return [each for each in self.get_params(ctx) if each.param_type_name == "option"]
