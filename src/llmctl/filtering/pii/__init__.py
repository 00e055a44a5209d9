"""Sensitive entities: find, check and replace what points at a person, an account or a secret.

`families/` is the catalogue, one file a family; `catalogue` gives its types by name, `detect` finds them in a text, and
`columns` works on a whole Arrow column.
"""
