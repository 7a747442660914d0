"""The methods, one file a family."""

from fedsaddle.algorithms.base import Algorithm, Citation
from fedsaddle.algorithms.coda import CODA, NPA, CODAPlus
from fedsaddle.algorithms.codasca import CODASCA
from fedsaddle.algorithms.codasca_published import PublishedCODASCA
from fedsaddle.algorithms.cycp import AmplifiedFedAvg, AmplifiedSCAFFOLD, CyCpFedAvg, CyCpMinimax, RSMinimax
from fedsaddle.algorithms.fair import DRFA, DeltaFL, QFedAvg
from fedsaddle.algorithms.fedavg import SCAFFOLD, FedAvg, FedProx, LocalSGDA
from fedsaddle.algorithms.fednest import FedNest
from fedsaddle.algorithms.fedsgda import FedSGDA
from fedsaddle.algorithms.ffmdr import FFMDR
from fedsaddle.algorithms.local_minimax import FedNormSGDA, FedSGDAM, FedSGDAPlus, MomentumLocalSGDA
from fedsaddle.algorithms.pairwise import CyCpPairwise, FeDXL2, RSPairwise
from fedsaddle.algorithms.scaffpd import AgnosticFedAvg, AgnosticFL, ScaffPD

ALGORITHMS: dict[str, type[Algorithm]] = {
    "local_sgda": LocalSGDA,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": SCAFFOLD,
    "npa": NPA,
    "coda": CODA,
    "coda_plus": CODAPlus,
    "codasca": CODASCA,
    "codasca_as_published": PublishedCODASCA,
    "fedsgda": FedSGDA,
    "cycp_minimax": CyCpMinimax,
    "rs_minimax": RSMinimax,
    "cycp_fedavg": CyCpFedAvg,
    "amplified_fedavg": AmplifiedFedAvg,
    "amplified_scaffold": AmplifiedSCAFFOLD,
    "cycp_pairwise": CyCpPairwise,
    "rs_pairwise": RSPairwise,
    "fedxl2": FeDXL2,
    "ffmdr": FFMDR,
    "momentum_local_sgda": MomentumLocalSGDA,
    "fed_norm_sgda": FedNormSGDA,
    "fedsgda_plus": FedSGDAPlus,
    "fedsgda_m": FedSGDAM,
    "fednest": FedNest,
    "scaff_pd": ScaffPD,
    "afl": AgnosticFL,
    "agnostic_fedavg": AgnosticFedAvg,
    "drfa": DRFA,
    "q_fedavg": QFedAvg,
    "delta_fl": DeltaFL,
}

__all__ = [
    "AmplifiedFedAvg",
    "AmplifiedSCAFFOLD",
    "CyCpFedAvg",
    "CyCpMinimax",
    "CyCpPairwise",
    "FeDXL2",
    "RSMinimax",
    "RSPairwise",
    "ALGORITHMS",
    "CODA",
    "CODASCA",
    "DRFA",
    "FFMDR",
    "AgnosticFL",
    "AgnosticFedAvg",
    "DeltaFL",
    "QFedAvg",
    "ScaffPD",
    "NPA",
    "SCAFFOLD",
    "Algorithm",
    "Citation",
    "CODAPlus",
    "FedAvg",
    "FedNest",
    "FedNormSGDA",
    "FedProx",
    "FedSGDA",
    "FedSGDAM",
    "FedSGDAPlus",
    "LocalSGDA",
    "MomentumLocalSGDA",
    "PublishedCODASCA",
]
