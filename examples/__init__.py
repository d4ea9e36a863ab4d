"""The classic policies, written in the language: one `.tpl` file each, with its source."""
