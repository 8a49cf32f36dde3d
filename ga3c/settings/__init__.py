"""What a user may choose: the schema, presets, YAML files, flags; and what the machine has."""
