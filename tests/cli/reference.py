"""Training steps of a small MLP in plain Python: what the program's numbers are held against.

Nothing of it is shared with the program, and it computes in double, so results agree to a tolerance, not to the bit.
"""
import math


def layers_of(tensors):
    """[(weight rows, bias)] from what read_safetensors gives, first layer first. A weight is [out][in]."""
    layers = []
    for i in sorted({int(name.split(".")[1]) for name in tensors}):
        (out, width), flat = tensors[f"layers.{i}.weight"]
        rows = [list(flat[r * width : (r + 1) * width]) for r in range(out)]
        layers.append((rows, list(tensors[f"layers.{i}.bias"][1])))
    return layers


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


def gradients(layers, samples):
    """Of the mean loss: the loss, and [(dW rows, db)]."""
    grads = [([[0.0] * len(row) for row in w], [0.0] * len(b)) for w, b in layers]
    loss, scale = 0.0, 1.0 / len(samples)
    for x, label in samples:
        inputs, logits = forward(layers, x)
        d = softmax(logits)
        loss -= math.log(d[label]) * scale
        d[label] -= 1.0
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


def flatten(layers):
    """{"layers.0.weight": [...]} as in a safetensors file."""
    flat = {}
    for i, (w, b) in enumerate(layers):
        flat[f"layers.{i}.weight"] = [v for row in w for v in row]
        flat[f"layers.{i}.bias"] = list(b)
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
