"""Perceptrons and optimisers in double-precision NumPy, gradients by hand: what updates are compared to."""

import numpy as np
from scipy import special, stats


def copied(params):
    """Layers as double-precision arrays."""
    return [{name: np.array(value, np.float64) for name, value in layer.items()} for layer in params]


def precise(params):
    """Every network of an agent, and its free parameters, as double-precision arrays."""
    return {
        name: copied(part) if isinstance(part, list) else np.array(part, np.float64) for name, part in params.items()
    }


def forward(layers, x, activation, layer_norm=False, unit=False):
    """(outputs, what `backward` needs); `unit` scales the last hidden layer to length 1."""
    inputs, hidden = [], []
    for number, layer in enumerate(layers[:-1]):
        inputs.append(x)
        x, slopes = x @ layer["w"] + layer["b"], []
        steps = [_standardised] if layer_norm else []
        steps.append(lambda z: _activated(z, activation))
        if unit and number == len(layers) - 2:
            steps.append(_scaled)
        for step in steps:
            x, slope = step(x)
            slopes.append(slope)
        hidden.append(slopes)
    return x @ layers[-1]["w"] + layers[-1]["b"], ([*inputs, x], hidden)


def backward(layers, kept, slope):
    """(gradients of the layers, gradient of the input) for the gradient `slope` of the outputs."""
    inputs, hidden = kept
    gradients = []
    for number in reversed(range(len(layers))):
        for step in reversed(hidden[number] if number < len(hidden) else []):
            slope = step(slope)
        gradients.append({"w": inputs[number].T @ slope, "b": slope.sum(0)})
        slope = slope @ layers[number]["w"].T
    return gradients[::-1], slope


def _activated(z, activation):
    if activation == "tanh":
        return np.tanh(z), lambda slope: slope * (1 - np.tanh(z) ** 2)
    low = {"relu": 0.0, "leaky_relu": 0.01}[activation]
    return np.where(z > 0, z, low * z), lambda slope: slope * np.where(z > 0, 1.0, low)


def _standardised(z):
    spread = np.sqrt(z.var(-1, keepdims=True) + 1e-6)
    y = (z - z.mean(-1, keepdims=True)) / spread
    average = lambda x: x.mean(-1, keepdims=True)
    return y, lambda slope: (slope - average(slope) - y * average(slope * y)) / spread


def _scaled(z):
    length = np.sqrt((z**2).sum(-1, keepdims=True))
    y = z / length
    return y, lambda slope: (slope - y * (slope * y).sum(-1, keepdims=True)) / length


def member(ensemble, number):
    """One network of an ensemble."""
    return [{name: leaf[number] for name, leaf in layer.items()} for layer in ensemble]


def q_values(critics, obs, action, activation="relu", unit=False):
    """([N, B] values of an ensemble, what each backward pass needs)."""
    pair = np.concatenate([obs, action], -1)
    passes = [forward(member(critics, n), pair, activation, unit=unit) for n in range(len(critics[0]["w"]))]
    return np.stack([q[:, 0] for q, _ in passes]), [kept for _, kept in passes]


def q_slopes(critics, kept, slope):
    """(gradients of an ensemble, gradient [B, ...] of its input) for the gradient [N, B] of its values."""
    passes = [backward(member(critics, n), kept[n], slope[n][:, None]) for n in range(len(slope))]
    gradients = [gradient for gradient, _ in passes]
    stacked = [{name: np.stack([g[i][name] for g in gradients]) for name in ("w", "b")} for i in range(len(critics))]
    return stacked, sum(below for _, below in passes)


def squashed(actor, obs, noise, activation="relu", unit=False):
    """Actions, their log-probabilities and what `climb_slopes` needs."""
    packed, kept = forward(actor, obs, activation, unit=unit)
    mean, raw_log_std = np.split(packed, 2, axis=-1)
    log_std = np.clip(raw_log_std, -20, 2)
    raw = mean + np.exp(log_std) * noise
    action = np.tanh(raw)
    log_prob = (stats.norm.logpdf(raw, mean, np.exp(log_std)) - np.log1p(-(action**2))).sum(-1)
    return action, log_prob, (kept, log_std, raw_log_std == log_std)


def climb_slopes(actor, critics, obs, noise, temperature, share, activation="relu", unit=False):
    """(gradient of mean(temperature log pi - sum_k share_k Q_k), log pi); `share(q_NB)` weighs the critics."""
    action, log_prob, (kept, log_std, free) = squashed(actor, obs, noise, activation, unit)
    q_NB, q_kept = q_values(critics, obs, action, activation, unit)
    d_action = q_slopes(critics, q_kept, -share(q_NB) / len(obs))[1][:, obs.shape[1] :]
    d_raw = temperature * 2 * action / len(obs) + d_action * (1 - action**2)
    d_log_std = np.where(free, d_raw * np.exp(log_std) * noise - temperature / len(obs), 0.0)
    return backward(actor, kept, np.concatenate([d_raw, d_log_std], -1))[0], log_prob


def least(q_NB):
    """All the weight on the least of the critics."""
    return np.eye(len(q_NB))[q_NB.argmin(0)].T


def moved(optimiser, params, gradients):
    """Parameters, in their own shape, after one step of the optimiser."""
    return put(optimiser.step(params, gradients), params)


def followed(slow, live, rate):
    """The slow tree moved towards the live one."""
    there = flat(live)
    return put({path: old + rate * (there[path] - old) for path, old in flat(slow).items()}, slow)


def clipped_slopes(params, batch, advantage, *, clip, entropy_weight, value_weight, bounded=False):
    """Gradients of a clipped surrogate, value and entropy loss, and the share of ratios that the clip holds back.

    `bounded` puts the mean of continuous actions through tanh.
    """
    discrete, rows = "log_std" not in params, len(advantage)
    obs, action = np.asarray(batch.obs, np.float64), np.asarray(batch.action)
    output, kept = forward(params["actor"], obs, "tanh")
    if discrete:
        log_all = output - special.logsumexp(output, axis=-1, keepdims=True)
        chance = np.exp(log_all)
        log_prob = log_all[np.arange(rows), action]
        d_log_prob = np.eye(output.shape[-1])[action] - chance
        d_entropy = -chance * (log_all + -(chance * log_all).sum(-1)[:, None])
    else:
        mean, std = np.tanh(output) if bounded else output, np.exp(params["log_std"])
        log_prob = stats.norm.logpdf(action, mean, std).sum(-1)
        d_log_prob = (action - mean) / std**2 * (1 - mean**2 if bounded else 1.0)
        d_log_std = (action - mean) ** 2 / std**2 - 1
    ratio = np.exp(log_prob - np.asarray(batch.aux.log_prob, np.float64))
    held = ((ratio > 1 + clip) & (advantage > 0)) | ((ratio < 1 - clip) & (advantage < 0))
    push = np.where(held, 0.0, -ratio * advantage) / rows
    slope = push[:, None] * d_log_prob - (entropy_weight * d_entropy / rows if discrete else 0.0)
    value, value_kept = forward(params["critic"], obs, "tanh")
    error = (value[:, 0] - np.asarray(batch.target)) / rows
    gradients = {
        "actor": backward(params["actor"], kept, slope)[0],
        "critic": backward(params["critic"], value_kept, value_weight * error[:, None])[0],
    }
    if not discrete:
        gradients["log_std"] = (push[:, None] * d_log_std).sum(0) - entropy_weight * np.ones(action.shape[1])
    return gradients, held.mean()


def flat(tree):
    """Leaves by path, of lists, dictionaries and arrays."""
    if isinstance(tree, dict):
        return {f"{name}/{path}": leaf for name, part in tree.items() for path, leaf in flat(part).items()}
    if isinstance(tree, list | tuple):
        return flat(dict(enumerate(tree)))
    return {"": np.asarray(tree, np.float64)}


class Adam:
    """Algorithm 1 of the paper over the leaves of a tree, after a global-norm clip."""

    def __init__(self, rate, epsilon, limit=None, beta1=0.9):
        self.rate, self.epsilon, self.limit, self.beta1, self.t = rate, epsilon, limit, beta1, 0
        self.first, self.second = {}, {}

    def step(self, params, gradients):
        """The parameters, flat, after one step."""
        params, gradients = flat(params), flat(gradients)
        assert params.keys() == gradients.keys()
        if self.limit is not None:
            norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
            gradients = {path: g * min(1.0, self.limit / norm) for path, g in gradients.items()}
        self.t += 1
        result = {}
        for path, g in gradients.items():
            self.first[path] = self.beta1 * self.first.get(path, 0.0) + (1 - self.beta1) * g
            self.second[path] = 0.999 * self.second.get(path, 0.0) + 0.001 * g**2
            mean, square = self.first[path] / (1 - self.beta1**self.t), self.second[path] / (1 - 0.999**self.t)
            result[path] = params[path] - self.rate * mean / (np.sqrt(square) + self.epsilon)
        return result


class RAdam(Adam):
    """Algorithm 2 of Liu et al., 2020, with the threshold 4."""

    def step(self, params, gradients):
        """The parameters, flat, after one step."""
        params, gradients = flat(params), flat(gradients)
        self.t += 1
        decay, longest = 0.999**self.t, 2 / (1 - 0.999) - 1
        length = longest - 2 * self.t * decay / (1 - decay)
        result = {}
        for path, g in gradients.items():
            self.first[path] = 0.9 * self.first.get(path, 0.0) + 0.1 * g
            self.second[path] = 0.999 * self.second.get(path, 0.0) + 0.001 * g**2
            step = self.first[path] / (1 - 0.9**self.t)
            if length > 4:
                top = (length - 4) * (length - 2) * longest
                rectified = np.sqrt(top / ((longest - 4) * (longest - 2) * length))
                step = step * rectified / (np.sqrt(self.second[path] / (1 - decay)) + self.epsilon)
            result[path] = params[path] - self.rate * step
        return result


class CentredRMSProp:
    """The gradient over the root of its running variance plus epsilon."""

    def __init__(self, rate, decay, epsilon):
        self.rate, self.decay, self.epsilon = rate, decay, epsilon
        self.mean, self.square = {}, {}

    def step(self, params, gradients):
        """The parameters, flat, after one step."""
        params, gradients = flat(params), flat(gradients)
        result = {}
        for path, g in gradients.items():
            self.mean[path] = self.decay * self.mean.get(path, 0.0) + (1 - self.decay) * g
            self.square[path] = self.decay * self.square.get(path, 0.0) + (1 - self.decay) * g**2
            result[path] = params[path] - self.rate * g / np.sqrt(
                self.square[path] - self.mean[path] ** 2 + self.epsilon
            )
        return result


def put(flat_leaves, like):
    """Flat leaves back in the shape of `like`."""
    if isinstance(like, dict):
        return {name: put(_below(flat_leaves, name), part) for name, part in like.items()}
    if isinstance(like, list | tuple):
        return [put(_below(flat_leaves, str(number)), part) for number, part in enumerate(like)]
    return flat_leaves[""]


def _below(flat_leaves, name):
    return {path.removeprefix(f"{name}/"): leaf for path, leaf in flat_leaves.items() if path.startswith(f"{name}/")}
