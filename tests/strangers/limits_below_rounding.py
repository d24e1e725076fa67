"""A limit on a number that rounding has swallowed: crossed, undecided or kept, by exit code."""

import numpy as np
import torch
from click.testing import CliRunner

from rankscope.cli import app

torch.manual_seed(32)
x = torch.randn(4, 2, 1, 16).expand(4, 2, 8, 16) + 1e-9 * torch.randn(4, 2, 8, 16)
off = x.double() - x.double().mean(dim=2, keepdim=True)
assert off.norm() / x.norm() < 32 * 2**-24
np.save("states.npy", x.numpy())
for rule, code in (("<0.01", 1), ("<1e-12", 3), (">0.01", 0)):
    asked = ["scan", "states.npy", "--fail-if", f"residual_ratio[frobenius,mean]{rule}"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == code, (rule, done.output)
