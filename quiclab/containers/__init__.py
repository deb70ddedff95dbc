"""The Docker engine: which one, what it grants, the image, the settings in compose.yaml."""
