"""Where the site lists no command that submits jobs, nobody inside has a snapshot taken or an image pulled by way of them."""

refused("skiff", "slurm", "submit", "--environment", "dev")
