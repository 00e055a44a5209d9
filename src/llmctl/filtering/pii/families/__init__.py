"""The families of sensitive entities: one file each, and the folder is the registry."""
