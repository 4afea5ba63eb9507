"""The draft's forward pass again, in float64 NumPy and as naively as it can be written.

One column at a time: its prefix is read token by token into a list of keys, then the column goes
on alone. Nothing here is shared with `eagle3_jax` but the configuration.
"""

import cmath
import math

import numpy as np

from eagle3_jax.config import (
    DynamicScaling,
    LatentAttentionConfig,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    YarnScaling,
)


class Tree:
    """Parameters by dotted name, in float64."""

    def __init__(self, params):
        self.params = params

    def __call__(self, name):
        node = self.params
        for part in name.split("."):
            node = node[part]
        return np.asarray(node, np.float64)

    def has(self, name):
        node = self.params
        for part in name.split("."):
            if part not in node:
                return False
            node = node[part]
        return True

    def dense(self, x, name):
        y = x @ self(f"{name}.kernel")
        return y + self(f"{name}.bias") if self.has(f"{name}.bias") else y

    def norm(self, x, name, eps):
        return self(f"{name}.scale") * x / math.sqrt(np.mean(x * x) + eps)


def inverse_frequencies(rope, head_dim, length):
    """One inverse frequency per rotated pair, and the magnitude, for a row of some length."""
    size = int(head_dim * rope.partial)
    pairs = range(size // 2)
    plain = [rope.theta ** (-2 * i / size) for i in pairs]
    match rope.scaling:
        case None:
            return plain, 1.0
        case LinearScaling(factor):
            return [f / factor for f in plain], 1.0
        case DynamicScaling(factor, original):
            if length <= original:
                return plain, 1.0
            grown = rope.theta * (factor * length / original - factor + 1) ** (size / (size - 2))
            return [grown ** (-2 * i / size) for i in pairs], 1.0
        case Llama3Scaling(factor, low, high, original):
            scaled = []
            for f in plain:
                wavelength = 2 * math.pi / f
                if wavelength < original / high:
                    scaled.append(f)
                elif wavelength > original / low:
                    scaled.append(f / factor)
                else:
                    smooth = (original / wavelength - low) / (high - low)
                    scaled.append((1 - smooth) * f / factor + smooth * f)
            return scaled, 1.0
        case YarnScaling() as y:
            return _yarn(y, rope.theta, plain, size)
        case LongRopeScaling() as s:
            divisors = s.long_factor if length > s.original_max_positions else s.short_factor
            magnitude = s.attention_factor
            if magnitude is None:
                grown = math.log(s.factor) / math.log(s.original_max_positions)
                magnitude = math.sqrt(1 + grown) if s.factor > 1 else 1.0
            return [f / d for f, d in zip(plain, divisors, strict=True)], magnitude
    raise AssertionError(rope.scaling)


def _yarn(y, theta, plain, size):
    def pair_that_turns(times):
        return size / 2 * math.log(y.original_max_positions / (2 * math.pi * times), theta)

    first, last = pair_that_turns(y.beta_fast), pair_that_turns(y.beta_slow)
    if y.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    last += 0.001 * (first == last)
    scaled = []
    for i, f in enumerate(plain):
        share = min(max((i - first) / (last - first), 0.0), 1.0)
        scaled.append(share * f / y.factor + (1 - share) * f)

    def magnitude(weight):
        return 1.0 if y.factor <= 1 else 1.0 + 0.1 * weight * math.log(y.factor)

    if y.attention_factor is not None:
        return scaled, y.attention_factor
    if y.mscale and y.mscale_all_dim:
        return scaled, magnitude(y.mscale) / magnitude(y.mscale_all_dim)
    return scaled, magnitude(1.0)


def _sharpness(scaling):
    """What DeepSeek's YaRN multiplies scores by."""
    if not isinstance(scaling, YarnScaling) or not scaling.mscale_all_dim or scaling.factor <= 1:
        return 1.0
    return (1 + scaling.mscale_all_dim * math.log(scaling.factor) / 10) ** 2


def turn(head, position, frequencies, magnitude):
    """A head turned by its position: dimension i with dimension i + R."""
    turned, half = head.copy(), len(frequencies)
    for i, frequency in enumerate(frequencies):
        cos, sin = math.cos(position * frequency), math.sin(position * frequency)
        turned[i] = magnitude * (head[i] * cos - head[i + half] * sin)
        turned[i + half] = magnitude * (head[i + half] * cos + head[i] * sin)
    return turned


def turn_neighbours(head, position, frequencies, magnitude):
    """A head turned by its position: dimensions 2i and 2i + 1 are one complex number."""
    turned = head.copy()
    for i, frequency in enumerate(frequencies):
        number = complex(head[2 * i], head[2 * i + 1])
        number *= cmath.rect(magnitude, position * frequency)
        turned[2 * i], turned[2 * i + 1] = number.real, number.imag
    return turned


class Column:
    """One sequence under way: per layer, a list of (key, value) of the tokens read so far."""

    def __init__(self, config, params):
        self.config, self.tree, self.length = config, Tree(params), 1
        self.read: list[list] = [[] for _ in range(config.num_layers)]

    def fuse(self, aux):
        c, p = self.config, self.tree
        if c.norm_before_fc:
            aux = p.norm(aux, "input_norm", c.rms_norm_eps)
        if c.fc_norm:
            parts = np.split(aux, c.num_aux)
            normed = [p.norm(x, f"fc_norm_{a}", c.rms_norm_eps) for a, x in enumerate(parts)]
            aux = np.concatenate(normed)
        return p.dense(aux, "fc") if c.num_aux else aux

    def advance(self, embedding, x, position):
        """One token; returns what is handed on and what the head reads."""
        c, p, eps = self.config, self.tree, self.config.rms_norm_eps
        for layer in range(c.num_layers):
            name = f"layers_{layer}"
            if layer == 0:
                hidden = p.norm(x, f"{name}.input_layernorm", eps) if c.double_norm else x
                hidden = p.norm(hidden, f"{name}.hidden_norm", eps)
                embedded = p.norm(embedding, f"{name}.input_layernorm", eps)
                read = np.concatenate([embedded, hidden])
                residual = hidden if c.norm_before_residual else x
            else:
                read, residual = p.norm(x, f"{name}.input_layernorm", eps), x
            y = residual + self.attend(read, position, layer)
            z = p.norm(y, f"{name}.post_attention_layernorm", eps)
            gate = p.dense(z, f"{name}.mlp.gate_proj")
            up = p.dense(z, f"{name}.mlp.up_proj")
            x = y + p.dense(gate / (1 + np.exp(-gate)) * up, f"{name}.mlp.down_proj")
        normed = p.norm(x, "norm", eps) if c.final_norm else x
        return (normed if c.norm_output else x), normed

    def grouped(self, x, position, layer):
        """Queries, keys and values of one token, a list of heads each."""
        a, p, name = self.config.attention, self.tree, f"layers_{layer}.self_attn"

        def heads(which, number):
            split = p.dense(x, f"{name}.{which}_proj").reshape(number, a.head_dim)
            if a.qk_norm and which in "qk":
                eps = self.config.rms_norm_eps
                return [p.norm(head, f"{name}.{which}_norm", eps) for head in split]
            return list(split)

        rope = inverse_frequencies(self.config.rope, a.head_dim, self.length)
        queries = [turn(head, position, *rope) for head in heads("q", a.num_heads)]
        keys = [turn(head, position, *rope) for head in heads("k", a.num_kv_heads)]
        return queries, keys, heads("v", a.num_kv_heads)

    def latent(self, x, position, layer):
        """The same of multi-head latent attention, a head at a time from its own rows."""
        a, p, name = self.config.attention, self.tree, f"layers_{layer}.self_attn"
        eps, nope, value = self.config.rms_norm_eps, a.qk_nope_head_dim, a.v_head_dim
        rope = inverse_frequencies(self.config.rope, a.qk_rope_head_dim, self.length)

        asked, rows = x, p(f"{name}.q_proj.kernel") if a.q_lora_rank is None else None
        if rows is None:
            asked = p.norm(p.dense(x, f"{name}.q_a_proj"), f"{name}.q_a_layernorm", eps)
            rows = p(f"{name}.q_b_proj.kernel")
        both = p.dense(x, f"{name}.kv_a_proj_with_mqa")
        kept = p.norm(both[: a.kv_lora_rank], f"{name}.kv_a_layernorm", eps)
        shared = turn_neighbours(both[a.kv_lora_rank :], position, *rope)
        kv_rows = p(f"{name}.kv_b_proj.kernel")

        queries, keys, values = [], [], []
        for n in range(a.num_heads):
            first = n * (nope + a.qk_rope_head_dim)
            still = asked @ rows[:, first : first + nope]
            turning = asked @ rows[:, first + nope : first + nope + a.qk_rope_head_dim]
            queries.append(np.concatenate([still, turn_neighbours(turning, position, *rope)]))
            first = n * (nope + value)
            keys.append(np.concatenate([kept @ kv_rows[:, first : first + nope], shared]))
            values.append(kept @ kv_rows[:, first + nope : first + nope + value])
        return queries, keys, values

    def attend(self, x, position, layer):
        a, p, name = self.config.attention, self.tree, f"layers_{layer}.self_attn"
        scale, heads = 1 / math.sqrt(a.head_dim), self.grouped
        if isinstance(a, LatentAttentionConfig):
            scale, heads = scale * _sharpness(self.config.rope.scaling), self.latent
        queries, keys, values = heads(x, position, layer)
        self.read[layer].append((keys, values))
        seen = self.read[layer]
        windows = getattr(self.config, "windows", ()) or (a.sliding_window,) * (layer + 1)
        if windows[layer] is not None:
            seen = seen[-windows[layer] :]
        mixed = []
        for n, query in enumerate(queries):
            kv = n // (a.num_heads // a.num_kv_heads)
            scores = np.array([query @ ks[kv] for ks, _ in seen]) * scale
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            mixed.append(sum(w * vs[kv] for w, (_, vs) in zip(weights, seen, strict=True)))
        return p.dense(np.concatenate(mixed), f"{name}.o_proj")


def draft_from(config, params, aux, embeddings, steps, *, start=0, own=None, length=None):
    """Draft `steps` steps after a prefix, a token at a time.

    Args:
        config: the draft's.
        params: its parameters.
        aux: `[t+1,A*Dt]`, states of the prefix.
        embeddings: `[t+1+steps,D]`, of the text from its first token on.
        steps: K.
        start: RoPE position of the first token.
        own: a function from what the head reads to the embedding of the token chosen; by
            default the text goes on.
        length: how long the row is at step k, for scalings that depend on it; by default this
            column's own prefix and what it has drafted.

    Returns:
        What is handed on and what the head reads, `[K,D]` each.
    """
    last = len(aux) - 1
    column = Column(config, params)
    length = length or (lambda k: start + last + 1 + k)
    column.length = length(0)
    for s in range(last + 1):
        state, read = column.advance(embeddings[s + 1], column.fuse(aux[s]), start + s)
    states, reads = [state], [read]
    for k in range(1, steps):
        column.length = length(k)
        token = embeddings[last + 1 + k] if own is None else own(read)
        state, read = column.advance(token, state, start + last + k)
        states.append(state)
        reads.append(read)
    return np.array(states), np.array(reads)


def unroll(config, params, aux, embeddings, steps, *, start=0, own=None, length=None):
    """Every column of one text on its own: states and head inputs, `[K,T,D]` each."""
    columns = len(aux)
    # Past the end of a text stand zeros.
    text = np.concatenate([embeddings, np.zeros((steps + 1, embeddings.shape[1]))])
    found = [
        draft_from(config, params, aux[: t + 1], text, steps, start=start, own=own, length=length)
        for t in range(columns)
    ]
    states, reads = zip(*found, strict=True)
    return np.stack(states, axis=1), np.stack(reads, axis=1)


def target(config, params, ids):
    """A target over one text: the states at boundaries 0 to L `[L+1,T,Dt]`, and logits `[T,V]`."""
    text, eps = Column(config, params), config.rms_norm_eps
    p, states, logits = text.tree, [], []
    for position, token in enumerate(ids):
        x = p("embed_tokens")[token]
        boundaries = [x]
        for layer in range(config.num_layers):
            name = f"layers_{layer}"
            read = p.norm(x, f"{name}.input_layernorm", eps)
            y = x + text.attend(read, position, layer)
            z = p.norm(y, f"{name}.post_attention_layernorm", eps)
            gate = p.dense(z, f"{name}.mlp.gate_proj")
            up = p.dense(z, f"{name}.mlp.up_proj")
            x = y + p.dense(gate / (1 + np.exp(-gate)) * up, f"{name}.mlp.down_proj")
            boundaries.append(x)
        states.append(boundaries)
        normed = p.norm(x, "norm", eps)
        logits.append(
            normed @ p("embed_tokens").T if config.tie_embeddings else p.dense(normed, "lm_head")
        )
    return np.array(states).swapaxes(0, 1), np.array(logits)


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def ttt_loss(config, params, texts, teacher, *, steps, decay):
    """The training loss, column by column: the weighted mean of the steps' own means.

    `texts` are (aux, embeddings, answer, pre-norm states) of one text each, without padding;
    `teacher` is (norm weight, head, epsilon).
    """
    norm, head, eps = teacher
    kernel = Tree(params)("lm_head.kernel")
    losses, agreed = [[] for _ in range(steps)], [[] for _ in range(steps)]
    for aux, embeddings, answer, last in texts:
        reads = unroll(config, params, aux, embeddings, steps)[1]
        for k in range(steps):
            for t in range(len(aux)):
                if t + 2 + k >= len(aux) or not answer[t + 2 + k]:
                    continue
                state = last[t + 1 + k]
                wanted = norm * state / math.sqrt(np.mean(state * state) + eps) @ head
                logits = reads[k, t] @ kernel
                losses[k].append(-softmax(wanted) @ np.log(softmax(logits)))
                agreed[k].append(logits.argmax() == wanted.argmax())
    means = [np.mean(step) if step else 0.0 for step in losses]
    weights = [decay**k for k in range(steps)]
    return np.dot(weights, means) / sum(weights), [np.mean(s) if s else 0.0 for s in agreed]
