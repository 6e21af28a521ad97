"""Gradients as users of the framework take them: by its autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def gradients(torch: Any, expression: Callable[[Mapping[str, Any]], Any], leaves: Mapping[str, Any], upstream: Any) -> dict[str, Any]:
    """Gradients of what `expression` makes of the leaves, each in the shape of its leaf, by output name: "dx" of leaf "x".

    upstream  the gradient of the expression's result
    """
    tracked = {name: t.detach().requires_grad_() for name, t in leaves.items()}
    found = torch.autograd.grad(expression(tracked), list(tracked.values()), upstream)
    return {f"d{name}": gradient for name, gradient in zip(tracked, found, strict=True)}
