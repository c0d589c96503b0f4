"""Right-hand sides as published repositories write them: their structure and habits, in our own words."""

import itertools
import math

import torch
from torch import nn
from torch.nn import functional


class AugmentedMLP(nn.Module):
    """The ANODE authors': a counter, and the time in front of the features."""

    def __init__(self, dim=3, hidden=8, time_dependent=True, non_linearity="relu", like=None):
        super().__init__()
        self.like = like
        self.nfe = 0
        self.time_dependent = time_dependent
        self.fc1 = nn.Linear(dim + time_dependent, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, dim)
        self.non_linearity = nn.ReLU(inplace=True) if non_linearity == "relu" else nn.Softplus()

    def forward(self, t, x):
        self.nfe += 1
        if self.time_dependent:
            t_vec = torch.ones(x.shape[0], 1).to(self.like or x.dtype) * t
            out = self.fc1(torch.cat([t_vec, x], 1))
        else:
            out = self.fc1(x)
        return self.fc3(self.non_linearity(self.fc2(self.non_linearity(out))))


class AugmentedConv(nn.Module):
    """Their field on images."""

    def __init__(self):
        super().__init__()
        self.nfe = 0
        self.conv = nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, t, x):
        self.nfe += 1
        t_img = torch.ones_like(x[:, :1, :, :]) * t
        return torch.tanh(self.conv(torch.cat([t_img, x], 1)))


class ConcatSquash(nn.Module):
    def __init__(self, dim_in, dim_out):
        super().__init__()
        self._layer = nn.Linear(dim_in, dim_out)
        self._hyper_bias = nn.Linear(1, dim_out, bias=False)
        self._hyper_gate = nn.Linear(1, dim_out)

    def forward(self, t, x):
        return self._layer(x) * torch.sigmoid(self._hyper_gate(t.view(1, 1))) + self._hyper_bias(t.view(1, 1))


class ConcatLinear(nn.Module):
    def __init__(self, dim_in, dim_out):
        super().__init__()
        self._layer = nn.Linear(dim_in + 1, dim_out)

    def forward(self, t, x):
        tt = torch.ones_like(x[:, :1]) * t
        return self._layer(torch.cat([tt, x], 1))


class IgnoreLinear(nn.Module):
    def __init__(self, dim_in, dim_out):
        super().__init__()
        self._layer = nn.Linear(dim_in, dim_out)

    def forward(self, t, x):
        return self._layer(x)


class HyperLinear(nn.Module):
    """Weights and biases from a small network of t."""

    def __init__(self, dim_in, dim_out, hypernet_dim=4):
        super().__init__()
        self.dim_in, self.dim_out = dim_in, dim_out
        self.params_dim = dim_in * dim_out + dim_out
        self._hypernet = nn.Sequential(nn.Linear(1, hypernet_dim), nn.Tanh(), nn.Linear(hypernet_dim, self.params_dim))

    def forward(self, t, x):
        params = self._hypernet(t.view(1, 1)).view(-1)
        b = params[: self.dim_out].view(self.dim_out)
        w = params[self.dim_out :].view(self.dim_out, self.dim_in)
        return functional.linear(x, w, b)


class BlendLinear(nn.Module):
    def __init__(self, dim_in, dim_out):
        super().__init__()
        self._layer0, self._layer1 = nn.Linear(dim_in, dim_out), nn.Linear(dim_in, dim_out)

    def forward(self, t, x):
        y0, y1 = self._layer0(x), self._layer1(x)
        return y0 + (y1 - y0) * t


class ConcatConv(nn.Module):
    def __init__(self, dim_in, dim_out):
        super().__init__()
        self._layer = nn.Conv2d(dim_in + 1, dim_out, 3, padding=1)

    def forward(self, t, x):
        tt = torch.ones_like(x[:, :1, :, :]) * t
        return self._layer(torch.cat([tt, x], 1))


class Layers(nn.Module):
    """FFJORD's chain of such layers."""

    def __init__(self, layer, dims=(2, 6, 2), nonlinearity="tanh"):
        super().__init__()
        self.layers = nn.ModuleList(layer(a, b) for a, b in itertools.pairwise(dims))
        self.activation_fns = nn.ModuleList([{"tanh": nn.Tanh(), "softplus": nn.Softplus()}[nonlinearity]] * 9)

    def forward(self, t, y):
        dx = y
        for i, layer in enumerate(self.layers):
            dx = layer(t, dx)
            if i < len(self.layers) - 1:
                dx = self.activation_fns[i](dx)
        return dx


def divergence_bf(dx, y):
    sum_diag = 0.0
    for i in range(y.shape[1]):
        sum_diag += torch.autograd.grad(dx[:, i].sum(), y, create_graph=True)[0].contiguous()[:, i].contiguous()
    return sum_diag.contiguous()


def divergence_approx(f, y, e):
    e_dzdx = torch.autograd.grad(f, y, e, create_graph=True)[0]
    return (e_dzdx * e).view(y.shape[0], -1).sum(dim=1)


class Flow(nn.Module):
    """FFJORD's ODEfunc: the log density as a second component, further states at rest, noise frozen per solve."""

    def __init__(self, diffeq, approximate=False):
        super().__init__()
        self.diffeq, self.approximate = diffeq, approximate
        self._e = None
        self._num_evals = 0

    def before_odeint(self, e=None):
        self._e = e
        self._num_evals = 0

    def forward(self, t, states):
        y = states[0]
        self._num_evals += 1
        t = torch.as_tensor(t).type_as(y)
        batchsize = y.shape[0]
        with torch.set_grad_enabled(True):
            y.requires_grad_(True)
            t.requires_grad_(True)
            dy = self.diffeq(t, y)
            if self.approximate:
                divergence = divergence_approx(dy, y, self._e).view(batchsize, 1)
            else:
                divergence = divergence_bf(dy, y).view(batchsize, 1)
        return (dy, -divergence, *(torch.zeros_like(s).requires_grad_(True) for s in states[2:]))


class RegularizedFlow(Flow):
    """With the kinetic energy and the Frobenius norm of the Jacobian (RNODE) as further components."""

    def forward(self, t, states):
        y = states[0]
        with torch.enable_grad():
            y = y.requires_grad_(True)
            dy = self.diffeq(t, y)
            e_dzdx = torch.autograd.grad(dy, y, self._e, create_graph=True)[0]
        divergence = (e_dzdx * self._e).sum(1, keepdim=True)
        kinetic = 0.5 * dy.pow(2).mean(1, keepdim=True)
        return dy, -divergence, kinetic, e_dzdx.pow(2).mean(1, keepdim=True)


class LatentODEFunc(nn.Module):
    """The latent ODE's: a network applied to the last dimension, and a switch for going back in time."""

    def __init__(self, dim=4):
        super().__init__()
        self.gradient_net = nn.Sequential(nn.Linear(dim, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, dim))

    def forward(self, t_local, y, backwards=False):
        grad = self.get_ode_gradient_nn(t_local, y)
        return -grad if backwards else grad

    def get_ode_gradient_nn(self, t_local, y):
        return self.gradient_net(y)


class SecondOrder(nn.Module):
    """SONODE's: position and velocity in one state."""

    def __init__(self, dim=2):
        super().__init__()
        self.nfe = 0
        self.fc1, self.fc2 = nn.Linear(2 * dim, 8), nn.Linear(8, dim)

    def forward(self, t, z):
        self.nfe += 1
        cutoff = int(z.shape[1] / 2)
        out = self.fc2(torch.relu(self.fc1(z)))
        return torch.cat((z[:, cutoff:], out), dim=1)


class SecondOrderTuple(SecondOrder):
    def forward(self, t, z):
        x, v = z
        return v, self.fc2(functional.elu(self.fc1(torch.cat((x, v), 1))))


class Hamiltonian(nn.Module):
    def __init__(self, dim=4):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 8), nn.Tanh(), nn.Linear(8, 1))
        self.register_buffer("J", torch.zeros(dim, dim))
        self.J[: dim // 2, dim // 2 :] = torch.eye(dim // 2)
        self.J[dim // 2 :, : dim // 2] = -torch.eye(dim // 2)

    def forward(self, t, x):
        with torch.enable_grad():
            x = x.requires_grad_(True) if not x.requires_grad else x
            h = self.net(x).sum()
            dh = torch.autograd.grad(h, x, create_graph=True)[0]
        return dh @ self.J.t()


class Lagrangian(nn.Module):
    """The Euler-Lagrange equation of one degree of freedom, from a network's derivatives."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Softplus(), nn.Linear(8, 1))

    def forward(self, t, state):
        with torch.enable_grad():
            state = state.requires_grad_(True) if not state.requires_grad else state
            v = state[:, 1:]
            lagrangian = 0.5 * v.pow(2).sum() + self.net(state).sum() * 0.1
            grads = torch.autograd.grad(lagrangian, state, create_graph=True)[0]
            second = torch.autograd.grad(grads[:, 1].sum(), state, create_graph=True)[0]
        accel = (grads[:, 0] - second[:, 0] * state[:, 1]) / second[:, 1]
        return torch.stack([state[:, 1], accel], dim=1)


class CubicPath:
    """A piecewise cubic path, found by searching the knots for t."""

    def __init__(self, times, slopes):
        self.times, self.b, self.c = times, slopes, slopes.roll(1, 0)

    def derivative(self, t):
        index = torch.bucketize(t.detach(), self.times).sub(1).clamp(0, len(self.times) - 2)
        return self.b[index] + self.c[index] * (t - self.times[index])


class ControlledField(nn.Module):
    """A neural CDE's vector field times the derivative of its control."""

    def __init__(self, path, dim=2, channels=3):
        super().__init__()
        self.path, self.dim, self.channels = path, dim, channels
        self.net = nn.Sequential(nn.Linear(dim, 8), nn.ReLU(), nn.Linear(8, dim * channels), nn.Tanh())

    def forward(self, t, z):
        matrix = self.net(z).view(z.size(0), self.dim, self.channels)
        return (matrix @ self.path.derivative(t).unsqueeze(-1)).squeeze(-1)


class Lambda(nn.Module):
    """torchdiffeq's spiral: a true field of cubes."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.A = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]], dtype=dtype)

    def forward(self, t, y):
        return torch.mm(y**3, self.A)


class SpiralFunc(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2))
        for m in self.net.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, mean=0, std=0.1)
                nn.init.constant_(m.bias, val=0)

    def forward(self, t, y):
        return self.net(y**3)


class BouncingBall(nn.Module):
    def __init__(self):
        super().__init__()
        self.gravity = nn.Parameter(torch.tensor([9.8]))

    def forward(self, t, state):
        _pos, vel, log_radius = state
        return vel, -self.gravity, torch.zeros_like(log_radius)

    def event_fn(self, t, state):
        pos, _, log_radius = state
        return pos - torch.exp(log_radius)


class HyperNetwork(nn.Module):
    """torchdiffeq's CNF: rank-one maps whose weights are functions of t."""

    def __init__(self, in_out_dim=2, hidden_dim=8, width=4):
        super().__init__()
        blocksize = width * in_out_dim
        self.fc1, self.fc2 = nn.Linear(1, hidden_dim), nn.Linear(hidden_dim, hidden_dim)
        self.fc3 = nn.Linear(hidden_dim, 3 * blocksize + width)
        self.in_out_dim, self.hidden_dim, self.width, self.blocksize = in_out_dim, hidden_dim, width, blocksize

    def forward(self, t):
        params = t.reshape(1, 1)
        params = torch.tanh(self.fc1(params))
        params = torch.tanh(self.fc2(params))
        params = self.fc3(params).reshape(-1)
        w = params[: self.blocksize].reshape(self.width, self.in_out_dim, 1)
        u = params[self.blocksize : 2 * self.blocksize].reshape(self.width, 1, self.in_out_dim)
        g = params[2 * self.blocksize : 3 * self.blocksize].reshape(self.width, 1, self.in_out_dim)
        b = params[3 * self.blocksize :].reshape(self.width, 1, 1)
        return [w, b, u * torch.sigmoid(g)]


class CNF(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.width, self.hyper_net = width, HyperNetwork(width=width)

    def forward(self, t, states):
        z = states[0]
        batchsize = z.shape[0]
        with torch.set_grad_enabled(True):
            z.requires_grad_(True)
            w, b, u = self.hyper_net(t)
            h = torch.tanh(torch.matmul(torch.unsqueeze(z, 0).repeat(self.width, 1, 1), w) + b)
            dz_dt = torch.matmul(h, u).mean(0)
            trace = 0.0
            for i in range(z.shape[1]):
                trace += torch.autograd.grad(dz_dt[:, i].sum(), z, create_graph=True)[0][:, i]
        return dz_dt, -trace.view(batchsize, 1)


class GRUODECell(nn.Module):
    """GRU-ODE-Bayes' cell without inputs."""

    def __init__(self, hidden=3):
        super().__init__()
        self.lin_hz, self.lin_hr = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.lin_hh = nn.Linear(hidden, hidden, bias=False)
        self.x = nn.Parameter(torch.zeros(3, hidden) + 0.1)

    def forward(self, t, h):
        xr, xz, xh = self.x
        r = torch.sigmoid(xr + self.lin_hr(h))
        z = torch.sigmoid(xz + self.lin_hz(h))
        u = torch.tanh(xh + self.lin_hh(r * h))
        return (1 - z) * (u - h)


class GraphField(nn.Module):
    """A graph's nodes as the first dimension: neighbours mix."""

    def __init__(self, nodes=5, dim=3):
        super().__init__()
        self.register_buffer("adjacency", torch.softmax(torch.arange(nodes * nodes).view(nodes, nodes).sin(), 1))
        self.weight = nn.Parameter(torch.randn(dim, dim) / dim)

    def forward(self, t, h):
        return torch.relu(self.adjacency @ h @ self.weight) - h


class Siren(nn.Module):
    """Sines of features and Fourier features of t."""

    def __init__(self, dim=2, bands=3):
        super().__init__()
        self.register_buffer("frequencies", 2.0 ** torch.arange(bands) * math.pi)
        self.first, self.second = nn.Linear(dim + 2 * bands, 8), nn.Linear(8, dim)

    def forward(self, t, y):
        angles = self.frequencies * t
        embedding = torch.cat([angles.sin(), angles.cos()]).expand(y.shape[0], -1)
        return self.second(torch.sin(3.0 * self.first(torch.cat([y, embedding], dim=-1))))


class TimeGate(nn.Module):
    """Which network acts depends on t."""

    def __init__(self, dim=2):
        super().__init__()
        self.early, self.late = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, t, y):
        return torch.where(t < 0.5, torch.tanh(self.early(y)), torch.tanh(self.late(y)))


class FeatureAttention(nn.Module):
    """Features as tokens that attend to each other."""

    def __init__(self, tokens=3, width=4):
        super().__init__()
        self.embed = nn.Parameter(torch.randn(tokens, width))
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, t, y):
        x = y.unsqueeze(-1) * self.embed
        scores = self.q(x) @ self.k(x).transpose(-2, -1) / math.sqrt(x.shape[-1])
        x = self.norm(x + torch.softmax(scores, dim=-1) @ self.v(x))
        return self.out(x).squeeze(-1)


class LotkaVolterra(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_rates = nn.Parameter(torch.tensor([0.4, 0.1, 0.2, -0.3]))

    def forward(self, t, state):
        alpha, beta, gamma, delta = self.log_rates.exp()
        prey, predator = state.unbind(-1)
        return torch.stack([alpha * prey - beta * prey * predator, delta * prey * predator - gamma * predator], dim=-1)


class Lorenz(nn.Module):
    def __init__(self):
        super().__init__()
        self.sigma, self.rho, self.beta = 10.0, nn.Parameter(torch.tensor(28.0)), 8.0 / 3.0

    def forward(self, t, xyz):
        x, y, z = xyz[..., 0], xyz[..., 1], xyz[..., 2]
        return torch.stack((self.sigma * (y - x), x * (self.rho - z) - y, x * y - self.beta * z), -1) * 0.1


class Pendulum(nn.Module):
    """Writes the slopes into a new tensor."""

    def __init__(self):
        super().__init__()
        self.damping = nn.Parameter(torch.tensor(0.1))

    def forward(self, t, x):
        dx = torch.zeros_like(x)
        dx[:, 0] = x[:, 1]
        dx[:, 1] = -torch.sin(x[:, 0]) - self.damping * x[:, 1] + 0.2 * torch.cos(t)
        return dx
