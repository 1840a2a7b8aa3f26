"""The training methods: the server's side of each and its trainers', and the table of named ones."""
