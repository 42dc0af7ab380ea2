"""A run is a directory: its configuration, its records, its state. The same command again goes on."""
