"""From any file, folder or address to a configuration that runs."""
