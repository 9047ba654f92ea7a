"""Perceptrons and optimisers in double-precision NumPy, gradients by hand: what updates are compared to."""

import numpy as np


def copied(params):
    """Layers as double-precision arrays."""
    return [{name: np.array(value, np.float64) for name, value in layer.items()} for layer in params]


def forward(layers, x, activation):
    """(outputs, what `backward` needs)."""
    inputs, before = [], []
    for number, layer in enumerate(layers):
        inputs.append(x)
        x = x @ layer["w"] + layer["b"]
        before.append(x)
        if number < len(layers) - 1:
            x = np.tanh(x) if activation == "tanh" else np.maximum(x, 0.0)
    return x, (inputs, before)


def backward(layers, kept, slope, activation):
    """(gradients of the layers, gradient of the input) for the gradient `slope` of the outputs."""
    inputs, before = kept
    gradients = []
    for number in reversed(range(len(layers))):
        if number < len(layers) - 1:
            local = 1.0 - np.tanh(before[number]) ** 2 if activation == "tanh" else before[number] > 0
            slope = slope * local
        gradients.append({"w": inputs[number].T @ slope, "b": slope.sum(0)})
        slope = slope @ layers[number]["w"].T
    return gradients[::-1], slope


def flat(tree):
    """Leaves by path, of lists, dictionaries and arrays."""
    if isinstance(tree, dict):
        return {f"{name}/{path}": leaf for name, part in tree.items() for path, leaf in flat(part).items()}
    if isinstance(tree, list | tuple):
        return flat(dict(enumerate(tree)))
    return {"": np.asarray(tree, np.float64)}


class Adam:
    """Algorithm 1 of the paper over the leaves of a tree, after a global-norm clip."""

    def __init__(self, rate, epsilon, limit=None):
        self.rate, self.epsilon, self.limit, self.t = rate, epsilon, limit, 0
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
            self.first[path] = 0.9 * self.first.get(path, 0.0) + 0.1 * g
            self.second[path] = 0.999 * self.second.get(path, 0.0) + 0.001 * g**2
            mean, square = self.first[path] / (1 - 0.9**self.t), self.second[path] / (1 - 0.999**self.t)
            result[path] = params[path] - self.rate * mean / (np.sqrt(square) + self.epsilon)
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
