"""All settings of a run: schema, presets, YAML files, flags. Also the cores and memory of the machine."""
