"""Networks that a transform trains before the samples become its features: each is trained once, and kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from fedsaddle.folder import write_whole


class Networks:
    """Trained networks by what they were trained on and how.

    Args:
        folder: where they are kept for other processes and for a later call; only in memory unless given.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._trained: dict[str, nn.Module] = {}

    def get(self, key: str, build: Callable[[], nn.Module], train: Callable[[], nn.Module]) -> nn.Module:
        """The network of a key: as it was kept, or trained and kept.

        Args:
            key: all that bears on the trained weights: a config, and what the data are.
            build: one of the same architecture, for weights that were kept in a file.
            train: trains it.
        """
        if key not in self._trained:
            network = self._read(key, build)
            if network is None:
                network = train()
                self._write(key, network)
            self._trained[key] = network
        return self._trained[key]

    def _file(self, key: str) -> Path | None:
        name = f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.safetensors"
        return None if self.folder is None else self.folder / name

    def _read(self, key: str, build: Callable[[], nn.Module]) -> nn.Module | None:
        file = self._file(key)
        if file is None or not file.exists():
            return None
        try:
            weights = load_file(file)
            network = build()
            for v in weights.values():
                if v.is_floating_point():
                    network.to(v.dtype)  # as it was trained
            network.load_state_dict(weights)
        except (OSError, SafetensorError, RuntimeError):  # damaged: trained anew
            return None
        return network

    def _write(self, key: str, network: nn.Module) -> None:
        file = self._file(key)
        if file is None:
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        # clones, since tied weights share memory
        weights = {k: v.detach().cpu().contiguous().clone() for k, v in network.state_dict().items()}
        write_whole(file, save(weights, {"config": key}))
