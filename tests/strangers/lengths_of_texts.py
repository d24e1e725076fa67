"""A model that is told how long its texts are, and makes its mask of that."""

import torch
from torch import nn

import rankscope as rs


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 16), nn.Embedding(40, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True) for _ in range(2)
        )

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        is_padding = torch.arange(ids.shape[1]) >= lengths[:, None]
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=is_padding)
        return x.masked_fill(is_padding[..., None], 0.0).sum(1) / lengths[:, None]


torch.manual_seed(4)
model = Reader().double().eval()
states: list[torch.Tensor] = []
for layer in model.layers:
    layer.register_forward_hook(lambda _, args, out: states.append(out))
lengths = torch.tensor([10, 6, 9])
with rs.record(model) as seen:
    model(torch.randint(50, (3, 10)), lengths)
truth = [
    (rows - rows.mean(0)).norm() / rows.norm()
    for state in states
    for rows in (text[:length] for text, length in zip(state, lengths, strict=True))
]
table = rs.scan(seen).table.frame.filter(site="block", definition="residual_ratio[frobenius,mean]")
measured = table.sort("layer", "sample")["value"].to_torch()[3:]
torch.testing.assert_close(measured, torch.stack(truth), rtol=1e-6, atol=0)
found = rs.translate(seen)
assert all(block.covered == 1.0 for block in found.recognised)
states.clear()
lengths = torch.tensor([4, 13, 13, 7])
with rs.record(model) as other:
    model(torch.randint(50, (4, 13)), lengths)
theirs, is_token = states.copy(), torch.arange(13) < lengths[:, None]
for ours, state in zip(found.network.states(*found.embed(other.batches[0]))[1:], theirs, strict=True):
    torch.testing.assert_close(ours[is_token], state[is_token], rtol=0, atol=1e-10)
