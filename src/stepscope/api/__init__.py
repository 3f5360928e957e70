"""The functions of `stepscope` that no other room offers, with the settings and results of the commands."""
