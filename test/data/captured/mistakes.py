# Modules and losses with a mistake that people make: capture_mistakes.py has what a capture says of each.

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self, between=lambda self, x: x):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 5)
        self.between = between

    def forward(self, x):
        return self.b(self.between(self, self.a(x)))


def doing(between):
    return lambda: Net(between)


# Sizes and types
transposed = doing(lambda self, x: x.t())
flattened_wrongly = doing(lambda self, x: x.view(-1, 7))
batch_of_four = doing(lambda self, x: x.view(4, 16) * 1)
wrong_axis = doing(lambda self, x: x.softmax(3))
integer_linear = doing(lambda self, x: self.a(x.long()))
unequal_types = doing(lambda self, x: x.double())
on_a_gpu = doing(lambda self, x: x + torch.ones(16, device="cuda"))
broadcast = doing(lambda self, x: x + torch.ones(3, 16))
# Python on numbers
looped = doing(lambda self, x: x * sum(float(v) for v in x.mean(1)))
while_large = doing(lambda self, x: while_it(x))


def while_it(x):
    while x.norm() > 1:
        x = x / 2
    return x


as_a_list = doing(lambda self, x: x * torch.tensor(x.mean(1).tolist()).mean())
as_an_int = doing(lambda self, x: x[:, : int(x.abs().max()) + 1].sum(1, keepdim=True) + x)
elsewhere = doing(lambda self, x: checked(x))


def checked(x):
    if torch.isnan(x).any():
        return x.nan_to_num()
    return x


by_mask = doing(lambda self, x: self.a.bias[x[0] > 0].sum() + x)
by_mask_before = doing(lambda self, x: x + above_zero(x))


def above_zero(x):
    found = x[x > 0]
    return found.mean() if len(found) > 1 else x.mean()


as_a_key = doing(lambda self, x: x / len(set((x > 0).sum(1).tolist())))
packed = doing(
    lambda self, x: nn.utils.rnn.pack_padded_sequence(x.T[:, :, None], [16] * len(x)).data.sum() + x
)
# State


class CountsUp(Net):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) / self.calls


class Appends(Net):
    def __init__(self):
        super().__init__()
        self.history = []

    def forward(self, x):
        self.history.append(x.mean())
        return super().forward(x) + torch.stack(self.history).mean()


class MakesParameters(Net):
    def forward(self, x):
        if not hasattr(self, "late"):
            self.late = nn.Parameter(torch.ones(5))
        return super().forward(x) * self.late


class ListOfLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(8, 16), nn.Linear(16, 5)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class HalfInAList(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.rest = nn.Linear(8, 16), [nn.Linear(16, 5)]

    def forward(self, x):
        return self.rest[0](self.a(x))


class Misspelt(Net):
    def forward(self, x):
        return self.c(self.a(x))


class Forgets(Net):
    def forward(self, x):
        self.b(self.a(x))


class GrowingBuffer(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(0, 16))

    def forward(self, x):
        h = self.a(x)
        self.seen = torch.cat([self.seen, h.detach()])
        return self.b(h + self.seen.mean(0))


class KeepsGraph(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(16))

    def forward(self, x):
        self.state = 0.9 * self.state + self.a(x).mean(0)
        return self.b(self.a(x) + self.state)


class Detaches(Net):
    def forward(self, x):
        return super().forward(x).data


class StepsItself(Net):
    def __init__(self):
        super().__init__()
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)

    def forward(self, x):
        loss = super().forward(x).mean()
        loss.backward()
        self.optimizer.step()
        return super().forward(x)


class AutocastInside(Net):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x)


class NeedsMode(Net):
    def forward(self, x):
        if not torch.is_grad_enabled():
            raise RuntimeError("call me in training only")
        return super().forward(x)


class TrainsAlone(Net):
    def forward(self, x):
        return super().forward(x) if self.training else None


class DeadBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2


no_backward = doing(lambda self, x: DeadBackward.apply(x))


class TooFewGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * y

    @staticmethod
    def backward(ctx, g):
        return g


too_few_gradients = doing(lambda self, x: TooFewGradients.apply(x, self.a.bias))


class WrongShape(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g[:, :3]


wrong_gradient = doing(lambda self, x: WrongShape.apply(x))
vmapped = doing(lambda self, x: torch.vmap(torch.tanh)(x))
differentiated = doing(lambda self, x: torch.autograd.grad(x.square().sum(), x, create_graph=True)[0])
nested = doing(lambda self, x: torch.nested.nested_tensor(list(x)).to_padded_tensor(0.0))
sparse_inside = doing(lambda self, x: x.to_sparse().to_dense())
quantized_inside = doing(lambda self, x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize())
random_generator = doing(lambda self, x: x * torch.rand(16, generator=torch.Generator().manual_seed(3)))
sampled = doing(lambda self, x: x + torch.multinomial(x.softmax(1), 1))
eigenvalues = doing(lambda self, x: x + torch.linalg.eig(x.T @ x)[0].abs().sum())


def returns_class():
    return Net


def returns_pair():
    return Net(), torch.optim.Adam(Net().parameters())


def loads_checkpoint():
    return torch.load("no_such_checkpoint.pt")


def missing_keys():
    model = Net()
    model.load_state_dict({"a.weight": torch.zeros(16, 8)})
    return model


def wrong_checkpoint():
    model = Net()
    model.load_state_dict({**model.state_dict(), "a.weight": torch.zeros(3, 8)})
    return model


# Losses
def loss_none(output, batch):
    output.mean()


def loss_tuple(output, batch):
    return output.mean(), {"accuracy": 0.5}


def loss_pair(output, batch):
    return output.mean(), output


def loss_detached(output, batch):
    return output.detach().mean()


def loss_item(output, batch):
    return output.mean().item()


def loss_of_attribute(output, batch):
    return output.logits.mean()


def loss_by_numbers(output, batch):
    return output.mean() if output.mean() > 0 else -output.mean()


def loss_masked(output, batch):
    return output[batch["y"] > 0].mean()


def loss_of_classes(output, batch):
    return F.cross_entropy(output, batch["y"])


def loss_accuracy(output, batch):
    return (output.argmax(1) == batch["y"]).float().mean()


loss_string = "cross_entropy"
