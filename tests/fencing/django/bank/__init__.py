"""A Django app with models of the shapes that people have."""
