"""The sections of the configuration, one a file: keys with their types, defaults and meanings."""
