"""Records a draft as a server runs it, in plain torch; Python of speculators' environment only.

    $(python benchmarks/witness_env.py speculators) -I benchmarks/witness/run_recorder.py JOB

`jobs.py` describes JOB. A case of mode "serve" holds `num_heads`, `num_kv_heads`, `head_dim`,
`rms_norm_eps`, `rope_theta`, `steps` K, and `rounds`: for each round how many columns each request
adds to its cache. NAME.weights.safetensors has canonical names, NAME.inputs.safetensors for each
request r `ids.{r} [T]` and `aux.{r} [T,A*D]`. NAME.trace.pt gets what the recorder hears by its map
for vLLM.

The modules have vLLM's names, fused matrices, norms that carry the residual and work in place, and
flat batches: a round reads the new columns of all requests at once, then drafts K-1 steps with one
column a request and greedy tokens. vLLM itself wants a GPU; these modules are in its place to show
that the map and the counting of steps fit a server's way of calling.

A case of mode "shapes" records modules that only hand on what they are given, and NAME.shapes.json
tells what became of padded batches, and of calls that the recorder refuses.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from jobs import Case, Tensors, load_recorder, read_inputs, read_weights, recorded, run_job
from torch import nn


class Norm(nn.Module):
    """RMSNorm; with a residual it adds in place and gives both."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        """Hold the weight."""
        super().__init__()
        self.weight, self.eps = nn.Parameter(weight), eps

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        """One tensor, or two with a residual."""
        if residual is None:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight
        residual += x
        x.copy_(self.forward(residual))
        return x, residual


class Fused(nn.Module):
    """A matrix, or some side by side, that gives its output and no bias."""

    def __init__(self, *weights: torch.Tensor, **sizes: int) -> None:
        """Lay the matrices side by side."""
        super().__init__()
        self.weight = nn.Parameter(torch.cat(weights))
        for name, size in sizes.items():
            setattr(self, name, size)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The product."""
        return x @ self.weight.T, None


class Cache(nn.Module):
    """Attention over what each request has in its cache, by request."""

    def __init__(self, heads: int, width: int) -> None:
        """Start empty."""
        super().__init__()
        self.heads, self.width = heads, width
        self.kept: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self.requests: list[int] = []  # of each token of the batch

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Token after token: remember its key, attend to its request's."""
        mixed = []
        for token, request in enumerate(self.requests):
            kept = self.kept.setdefault(request, [])
            kept.append((k[token].view(-1, self.width), v[token].view(-1, self.width)))
            keys, values = (torch.stack(part, 1) for part in zip(*kept, strict=True))
            groups = self.heads // keys.shape[0]
            keys, values = (part.repeat_interleave(groups, 0) for part in (keys, values))
            query = q[token].view(self.heads, 1, self.width)
            scores = (query * keys).sum(-1) * self.width**-0.5
            mixed.append((scores.softmax(-1)[..., None] * values).sum(1).flatten())
        return torch.stack(mixed)


class Attention(nn.Module):
    """vLLM's names, RoPE in place."""

    def __init__(self, case: Case, weights: Tensors, at: str) -> None:
        """Fuse q, k and v."""
        super().__init__()
        self.width, self.theta = case["head_dim"], case["rope_theta"]
        sizes = {"num_kv_heads": case["num_kv_heads"], "head_size": self.width}
        self.qkv_proj = Fused(*(weights[f"{at}.{name}_proj.weight"] for name in "qkv"), **sizes)
        self.attn = Cache(case["num_heads"], self.width)
        self.o_proj = Fused(weights[f"{at}.o_proj.weight"])
        keys = case["num_kv_heads"] * self.width
        self.sizes = [case["num_heads"] * self.width, keys, keys]

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """Attend."""
        qkv, _ = self.qkv_proj(hidden_states)
        q, k, v = qkv.split(self.sizes, dim=-1)
        for part in (q, k):
            self.turn(positions, part)
        output, _ = self.o_proj(self.attn(q, k, v))
        return output

    def turn(self, positions: torch.Tensor, x: torch.Tensor) -> None:
        """RoPE, first half of a head against the second."""
        half = self.width // 2
        frequencies = self.theta ** -(torch.arange(half) / half)
        angles = (positions[:, None] * frequencies)[:, None]
        heads = x.view(len(x), -1, self.width)
        one, other = heads[..., :half].clone(), heads[..., half:].clone()
        heads[..., :half] = one * angles.cos() - other * angles.sin()
        heads[..., half:] = other * angles.cos() + one * angles.sin()


class Mlp(nn.Module):
    """SwiGLU with gate and up fused."""

    def __init__(self, weights: Tensors, at: str) -> None:
        """Fuse gate and up."""
        super().__init__()
        gate, up = (weights[f"{at}.{name}_proj.weight"] for name in ("gate", "up"))
        self.gate_up_proj = Fused(gate, up)
        self.down_proj = Fused(weights[f"{at}.down_proj.weight"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The MLP's output."""
        gate, up = self.gate_up_proj(x)[0].chunk(2, -1)
        return self.down_proj(nn.functional.silu(gate) * up)[0]


class Layer(nn.Module):
    """The first layer."""

    def __init__(self, case: Case, weights: Tensors, at: str) -> None:
        """Build its parts."""
        super().__init__()
        for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
            setattr(self, name, Norm(weights[f"{at}.{name}.weight"], case["rms_norm_eps"]))
        self.self_attn = Attention(case, weights, f"{at}.self_attn")
        self.mlp = Mlp(weights, f"{at}.mlp")

    def forward(
        self, positions: torch.Tensor, embeds: torch.Tensor, hidden_states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The MLP's output and the residual, not yet added."""
        residual = hidden_states.clone()
        pair = torch.cat([self.input_layernorm(embeds), self.hidden_norm(hidden_states)], -1)
        mixed = self.self_attn(positions=positions, hidden_states=pair)
        hidden_states, residual = self.post_attention_layernorm(mixed, residual)
        return self.mlp(hidden_states), residual


class Body(nn.Module):
    """Everything but the head."""

    def __init__(self, case: Case, weights: Tensors) -> None:
        """Build its parts."""
        super().__init__()
        self.embed_tokens = nn.Embedding.from_pretrained(weights["embed_tokens.weight"])
        self.fc = nn.Linear(*reversed(weights["fc.weight"].shape), bias=False)
        self.fc.weight.copy_(weights["fc.weight"])
        self.layers = nn.ModuleList([Layer(case, weights, "layers.0")])
        self.norm = Norm(weights["norm.weight"], case["rms_norm_eps"])

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, hidden_states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the head reads, and what the next step is fed."""
        embeds = self.embed_tokens(input_ids)
        mlp, residual = self.layers[0](
            positions=positions, embeds=embeds, hidden_states=hidden_states
        )
        return self.norm(mlp, residual)


class LogitsProcessor(nn.Module):
    """The head's product."""

    def forward(self, head: nn.Embedding, hidden_states: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return hidden_states @ head.weight.T


class Draft(nn.Module):
    """Body and head; `lm_head` itself is never called."""

    def __init__(self, case: Case, weights: Tensors) -> None:
        """Build both."""
        super().__init__()
        self.model = Body(case, weights)
        self.lm_head = nn.Embedding.from_pretrained(weights["lm_head.weight"])
        self.logits_processor = LogitsProcessor()

    def say(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The likeliest tokens."""
        return self.logits_processor(self.lm_head, hidden_states).argmax(-1)


def propose(draft: Draft, ids: Tensors, aux: Tensors, spans: dict[int, range], steps: int) -> None:
    """One round: the new columns of every request, then a column each."""
    cache = draft.model.layers[0].self_attn.attn
    cache.requests = [request for request, span in spans.items() for _ in span]
    positions = torch.cat([torch.tensor(span) for span in spans.values()])
    tokens = torch.cat([ids[str(r)][span.start + 1 : span.stop + 1] for r, span in spans.items()])
    states = torch.cat([aux[str(r)][span.start : span.stop] for r, span in spans.items()])
    read, state = draft.model(tokens, positions, draft.model.fc(states))
    last = torch.tensor([len(span) for span in spans.values()]).cumsum(0) - 1
    kept = {request: list(held) for request, held in cache.kept.items()}
    tokens, positions, state = draft.say(read[last]), positions[last], state[last]
    cache.requests = list(spans)
    for _ in range(steps - 1):
        positions = positions + 1
        read, state = draft.model(tokens, positions, state.clone())
        tokens = draft.say(read)
    cache.kept = kept  # keys of drafted columns are dropped, as after a rejection


def serve(job: Path, case: Case) -> None:
    """Record some rounds of a server."""
    inputs = read_inputs(job, case)
    ids, aux = (
        {name.split(".")[1]: part for name, part in inputs.items() if name.startswith(kind)}
        for kind in ("ids", "aux")
    )
    draft = Draft(case, read_weights(job, case))
    done = [0] * len(ids)
    with recorded(job, case, draft, "vllm"):
        for added in case["rounds"]:
            spans = {r: range(done[r], done[r] + count) for r, count in enumerate(added)}
            propose(draft, ids, aux, spans, case["steps"])
            done = [span.stop for span in spans.values()]


class Hollow(nn.Module):
    """A draft that hands on what it is given."""

    def __init__(self) -> None:
        """The modules that tell steps apart."""
        super().__init__()
        self.fc, self.midlayer = nn.Identity(), nn.Module()
        self.midlayer.hidden_norm = nn.Identity()
        self.midlayer.self_attn = nn.Module()
        self.midlayer.self_attn.o_proj = nn.Identity()
        self.midlayer.forward = self.layer

    def layer(self, hidden_states: torch.Tensor, position_ids: torch.Tensor | None = None) -> None:
        """The first layer."""
        self.midlayer.self_attn.o_proj(self.midlayer.hidden_norm(hidden_states))


def shapes(job: Path, case: Case) -> None:
    """What the recorder makes of batches of several shapes."""
    recorder, told = load_recorder(), {}

    def heard(name: str, *calls: Callable[[Hollow], Any]) -> None:
        draft = Hollow()
        try:
            recording = recorder.record(draft, recorder.MAPS["specforge"])
            for call in calls:
                call(draft)
            tensors = recording.tensors()
            recording.stop()
            draft.fc(torch.zeros(1, 1, 4))
            told[name] = {
                stage: part.tolist() for stage, part in tensors.items() if part.dim() == 1
            }
            told[name]["again"] = len(recording.tensors()) == len(tensors)
        except ValueError as error:
            told[name] = str(error)

    def step(shape: tuple[int, ...], places: Any = None, *, first: bool = False) -> Any:
        given = None if places is None else torch.tensor(places)
        value = torch.zeros(*shape, 4)

        def call(draft: Hollow) -> None:
            draft.midlayer(draft.fc(value) if first else value, position_ids=given)

        return call

    padded = [[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]]
    heard("padded", step((2, 5), padded, first=True), step((2, 5), padded))
    heard("padded, then decoded", step((2, 5), padded, first=True), step((2, 1), [[3], [5]]))
    heard("no positions", step((2, 3), first=True))
    heard("one row of positions", step((2, 3), [[4, 5, 6]], first=True))
    heard("flat", step((5,), [7, 8, 0, 1, 2], first=True), step((2,), [9, 3]))
    rounds = [step((2,), [0, 1], first=True), step((1,), [2]), step((1,), [2], first=True)]
    heard("rounds", *rounds)
    heard("a tree", step((1, 4), first=True), step((1, 3), [[4, 4, 4]]))
    heard("another batch", step((4,), [0, 1, 0, 1], first=True), step((3,), [2, 2, 2]))
    heard("begun in the middle", step((1, 2), [[5, 6]]), step((1, 2), first=True))
    heard("nothing")
    try:
        recorder.record(Hollow(), recorder.MAPS["vllm"])
    except ValueError as error:
        told["another map"] = str(error)
    (job / f"{case['name']}.shapes.json").write_text(json.dumps(told))


if __name__ == "__main__":
    sys.exit(run_job("Record a draft as a server runs it.", {"serve": serve, "shapes": shapes}))
