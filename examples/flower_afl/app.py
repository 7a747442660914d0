"""A Flower app: `flwr run .` trains over the SuperNodes that are connected, each of which keeps its data."""

from fedsaddle.deploy.app import client, server

__all__ = ["client", "server"]
