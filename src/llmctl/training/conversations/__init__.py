"""Conversations as people have them: read any common shape, render them once and the same way everywhere."""
