"""The command `gristmill`: one file or folder for each subcommand, and the configuration.

It may import from every room.
"""
