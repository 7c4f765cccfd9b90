"""Training steps of a small MLP in plain Python: what the program's numbers are held against.

Nothing of it is shared with the program, and it computes in double, so results agree to a tolerance, not to the bit.
"""
import math


def layer_of(tensors, name):
    """(weight rows, bias) of a layer, from what read_safetensors gives. A weight is [out][in]."""
    (out, width), flat = tensors[name + ".weight"]
    return [list(flat[r * width : (r + 1) * width]) for r in range(out)], list(tensors[name + ".bias"][1])


def layers_of(tensors):
    """The layers of a model, first layer first."""
    return [layer_of(tensors, f"layers.{i}") for i in sorted({int(name.split(".")[1]) for name in tensors})]


def forward(layers, x):
    """The inputs of every layer and the logits; ReLU between layers."""
    inputs = []
    for i, (w, b) in enumerate(layers):
        inputs.append(x)
        x = [sum(p * q for p, q in zip(row, x)) + c for row, c in zip(w, b)]
        if i + 1 < len(layers):
            x = [max(v, 0.0) for v in x]
    return inputs, x


def softmax(logits):
    most = max(logits)
    e = [math.exp(v - most) for v in logits]
    total = sum(e)
    return [v / total for v in e]


def evaluate(layers, samples):
    """Mean cross-entropy and accuracy over (x, label)."""
    loss = correct = 0
    for x, label in samples:
        _, logits = forward(layers, x)
        loss -= math.log(softmax(logits)[label])
        correct += max(range(len(logits)), key=logits.__getitem__) == label
    return loss / len(samples), correct / len(samples)


def cross_entropy(logits, label):
    """The loss of one sample, and its gradient with respect to the logits."""
    d = softmax(logits)
    loss = -math.log(d[label])
    d[label] -= 1.0
    return loss, d


def label_error(vectors):
    """A loss for `gradients`: the mean squared error of ReLU(outputs) against the vector of the sample's class."""
    def loss(outputs, label):
        n, v = len(outputs), vectors[label]
        d = [max(y, 0.0) - t for y, t in zip(outputs, v)]
        return sum(e * e for e in d) / n, [2 * e / n if y > 0 else 0.0 for y, e in zip(outputs, d)]

    return loss


def gradients(layers, samples, loss_of=cross_entropy):
    """Of the mean loss: the loss, and [(dW rows, db)]."""
    grads = [([[0.0] * len(row) for row in w], [0.0] * len(b)) for w, b in layers]
    loss, scale = 0.0, 1.0 / len(samples)
    for x, label in samples:
        inputs, logits = forward(layers, x)
        one, d = loss_of(logits, label)
        loss += one * scale
        d = [v * scale for v in d]
        for i in range(len(layers) - 1, -1, -1):
            (w, _), (dw, db) = layers[i], grads[i]
            for r, dr in enumerate(d):
                db[r] += dr
                row = dw[r]
                for c, v in enumerate(inputs[i]):
                    row[c] += dr * v
            if i > 0:
                d = [sum(w[r][c] * d[r] for r in range(len(d))) if inputs[i][c] > 0 else 0.0
                     for c in range(len(inputs[i]))]
    return loss, grads


def flatten(layers, names=None):
    """{"layers.0.weight": [...]} as in a safetensors file. `names`: the names of the layers in place of "layers.0"."""
    flat = {}
    for i, (w, b) in enumerate(layers):
        name = names[i] if names else f"layers.{i}"
        flat[name + ".weight"] = [v for row in w for v in row]
        flat[name + ".bias"] = list(b)
    return flat


def adamw(w, g, m, v, step, o):
    """One parameter list after its update; `step` counts from 1. Decay is decoupled."""
    b1, b2 = o["betas"]
    result = []
    for p, d, a, s in zip(w, g, m, v):
        a = b1 * a + (1 - b1) * d
        s = b2 * s + (1 - b2) * d * d
        p -= o["lr"] * o["weight_decay"] * p
        p -= o["lr"] * (a / (1 - b1**step)) / (math.sqrt(s / (1 - b2**step)) + o["eps"])
        result.append(p)
    return result


def sgd(w, g, momentum, o):
    result = []
    for p, d, a in zip(w, g, momentum):
        d += o["weight_decay"] * p
        result.append(p - o["lr"] * (o["momentum"] * a + d))
    return result
