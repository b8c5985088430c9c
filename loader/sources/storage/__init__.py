"""Where files are: paths and globs, and files that must not change while they are read."""
