"""Muon for the matrices of the layers, AdamW for embedding and norms, and the learning rate.

Muon orthogonalises the momentum of each matrix; matrices of one shape are handled as one batch.
Source: K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Bring the singular values of each matrix near one by a quintic Newton-Schulz iteration.

    Args:
        matrices: `[count, rows, columns]`.
        steps: Iterations.
    """
    x = matrices.bfloat16()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


class Muon:
    """Momentum with orthogonalised updates and decoupled weight decay.

    Args:
        parameters: Matrices.
        momentum: Factor of the running mean of gradients.
        weight_decay: Shrinkage per step, relative to the learning rate.
        compiled: Compile the orthogonalisation.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        compiled: bool = True,
    ) -> None:
        shapes: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for parameter in parameters:
            shapes[parameter.shape].append(parameter)
        self.groups = list(shapes.values())
        self.means = [torch.zeros_like(torch.stack(list(group))) for group in self.groups]
        self.momentum, self.weight_decay = momentum, weight_decay
        self._orthogonalise = torch.compile(orthogonalise) if compiled else orthogonalise

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update every matrix from its gradient and clear the gradient."""
        for group, mean in zip(self.groups, self.means, strict=True):
            gradients = torch.stack([parameter.grad for parameter in group])  # type: ignore[misc]
            mean.lerp_(gradients, 1 - self.momentum)
            updates = self._orthogonalise(gradients.lerp(mean, self.momentum))
            rows, columns = mean.shape[1:]
            scale = rate * max(1.0, rows / columns) ** 0.5
            torch._foreach_mul_(group, 1 - rate * self.weight_decay)
            torch._foreach_add_(group, list(updates.to(mean.dtype).unbind()), alpha=-scale)
            for parameter in group:
                parameter.grad = None


def rate_at(step: int, steps: int, warm_up: int = 100, decay: float = 0.5) -> float:
    """Return the factor of the learning rate: rise, plateau, straight fall to zero."""
    rise = min(1.0, (step + 1) / warm_up)
    fall = min(1.0, (steps - step) / (steps * decay))
    return rise * fall
