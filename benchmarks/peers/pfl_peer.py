"""Apple's pfl: SimulatedBackend and FederatedAveraging on a PyTorchModel, binary cross-entropy.

Settings, each the fastest that pfl documents for data that fit into memory:

- users are `PyTorchTensorDataset`s built once; pfl caches their minibatches, so a step neither draws nor gathers rows;
- local SGD, central SGD with rate 1, no postprocessors;
- evaluation happens in iteration 0 alone, which belongs to the warm-up; no callbacks, no metrics printed;
- started by torchrun, its workers share each cohort (pfl's way to use several cores).

pfl's `local_num_steps` ends after one pass over the data, so W1 and W3 take two epochs of ten minibatches: twenty steps,
of which two have 12 samples in the place of 32.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from workloads import WORKLOADS, Workload, arguments, auc, measure, report

NEVER = 1 << 40


class Classifier(nn.Module):
    """A model with the two methods that pfl asks for."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(self.model(x).squeeze(-1), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}


class Rounds:
    """A run that can be continued."""

    def __init__(self, workload: Workload) -> None:
        w = self.w = workload
        users = [
            PyTorchTensorDataset((x, y.float()), user_id=str(k))
            for k, (x, y) in enumerate(zip(*w.data(), strict=True))
        ]
        for user in users:
            list(user.iter(w.batch))  # fills pfl's cache of minibatches
        sampler = get_user_sampler("minimize_reuse", list(range(w.clients)))
        federation = FederatedDataset(users.__getitem__, sampler)
        self.backend = SimulatedBackend(training_data=federation, val_data=federation)
        self.module = Classifier(w.model())
        self.model = PyTorchModel(
            self.module,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(self.module.parameters(), lr=1.0),
        )
        self.algorithm = FederatedAveraging()
        epochs, rest = divmod(w.steps, -(-w.samples // w.batch))
        assert rest == 0, "the steps of a round must be whole passes over a user's data"
        self.training = NNTrainHyperParams(
            local_num_epochs=epochs, local_learning_rate=w.lr, local_batch_size=w.batch
        )
        self.done = 0

    def run(self, n: int) -> None:
        """Do n central iterations; the algorithm object counts on from the last call."""
        self.done += n
        self.algorithm.run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=self.done,
                evaluation_frequency=NEVER,
                train_cohort_size=self.w.cohort,
                val_cohort_size=None,
            ),
            backend=self.backend,
            model=self.model,
            model_train_params=self.training,
            send_metrics_to_platform=False,
        )


def of_first_worker(n: int) -> int:
    """The first worker's number, on all workers."""
    if not dist.is_initialized():
        return n
    number = torch.tensor(n)
    dist.broadcast(number, 0)
    return int(number)


def main() -> None:
    args = arguments(__doc__)
    torch.set_num_threads(args.threads)
    workload = WORKLOADS[args.workload]
    rounds = Rounds(workload)
    before = auc(rounds.module, workload)
    result = measure(rounds.run, args.seconds, of_first_worker)
    if not dist.is_initialized() or dist.get_rank() == 0:
        report(result, before, auc(rounds.module, workload))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
