"""An app that stands for the next version: it changes the largest table."""
