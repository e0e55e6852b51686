"""The `hotshoe` command: subcommands from plugins, flags generated from the configuration.

Modules here import nothing heavy at top level, so that help and mistakes answer at once; the engine
is imported when a command runs.
"""
