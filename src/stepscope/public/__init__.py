"""What the commands do, as functions: the names of `stepscope` that no other room offers, one file each.

Each takes what its command takes, in Python's own types, and returns what the command would show or write. They sit on
top of everything else, and nothing imports them but `stepscope` itself, when a name is first used.
"""
