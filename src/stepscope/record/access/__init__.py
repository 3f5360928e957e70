"""Access of sensors to what they read: kept files, buses, mailboxes, child processes, plugs; standard library only."""
