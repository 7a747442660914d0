"""Where client work runs."""

ENGINES = {
    "stacked": "the whole cohort in one batched computation (default)",
    "serial": "one client at a time, unbatched: slow and obvious, what the others are tested against",
    "torchrun": "several processes or GPUs, each with a share of the clients; started by torchrun",
}
