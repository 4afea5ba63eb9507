"""Records a trace of a draft in PyTorch: one file, no dependency but torch, made to be pasted.

    from torch_recorder import MAPS, record

    recorder = record(model, MAPS["speculators"])
    model(...)                                    # one round of drafting: fc once, then its steps
    recorder.save("theirs.pt")
    recorder.stop()

and then `eagle3-jax compare ours.safetensors theirs.pt`. `converters.traces` describes the file.

A map says where each stage of a draft is heard: at which module, whether it is given to it or comes
out of it, and which part of it. Fused matrices (`qkv_proj`, `gate_up_proj`) are taken apart, and
norms that carry the residual give a tuple. Stages that lie inside a function, as RoPE and scores
do in trainers, are heard by nobody and stay out of the file.

In a server, paste this file beside the worker and put the three calls around one round of
drafting: in SGLang around the worker's `draft` and the draft extension before it, with the draft's
model runner's `model`; in vLLM around the proposer's `propose`, with its `model`. Modules must be
called as they are (no CUDA graphs, no torch.compile: SGLang `--disable-cuda-graph`, vLLM
`--enforce-eager`), on one GPU, with chain drafting (top-k 1): a tree has several columns of one
request at one position, which this file cannot tell apart.

How steps are counted: a call of the first layer is a step, and it is step 0 when `fc` was called
since the last one. A step that has as many columns as step 0 goes on from all of them (a trainer);
any other goes on from one column of each request, in the order of the requests (a server), and
finds it by its position. Without positions columns count from 0. Columns `[B, T]` whose positions
do not ascend are padding, on the right, and left out; in a flat batch `[N]` a position that does
not ascend begins the next request. Rounds of the same requests follow one another in one trace.
"""

import inspect
from typing import Any, NamedTuple

SCHEMA, VERSION = "eagle3-jax-trace", "1"
LOGITS, TOP = 1024, 8  # draft ids whose logits are kept at most, and how many of the best
ONCE = ("aux", "fc_input", "fc")
INTEGERS = ("token", "position")


class Tap(NamedTuple):
    """Where a stage is heard.

    Attributes:
        module: its path; "" is the model itself, and * the number of a layer after the first.
        source: "in.NAME" or "in.NUMBER" of its arguments, or "out"; what follows a dot leads on
            into a tuple or an object, so "out.1" is the second thing that it returns.
        part: "first" or "second" half of the last axis; "q", "k" or "v" of a fused matrix.
    """

    module: str
    source: str
    part: str = ""


def _layer(stage: str, path: str, norm: str, *, fused: bool) -> dict[str, Tap]:
    """A decoder layer of Hugging Face's modules, or of a server's fused ones."""
    attention, mlp = f"{path}.self_attn", f"{path}.mlp"
    taps = {
        "attention": Tap(f"{attention}.o_proj", "in.0"),
        "attention_out": Tap(f"{attention}.o_proj", "out.0" if fused else "out"),
        "residual": Tap(norm, "out.1" if fused else "in.0"),
        "residual_normed": Tap(norm, "out.0" if fused else "out"),
        "mlp": Tap(mlp, "out"),
    }
    if fused:
        taps |= {part: Tap(f"{attention}.qkv_proj", "out.0", part) for part in "qkv"}
        taps |= {
            "q_rotated": Tap(f"{attention}.attn", "in.0"),
            "k_rotated": Tap(f"{attention}.attn", "in.1"),
            "gate": Tap(f"{mlp}.gate_up_proj", "out.0", "first"),
            "up": Tap(f"{mlp}.gate_up_proj", "out.0", "second"),
        }
    else:
        taps |= {part: Tap(f"{attention}.{part}_proj", "out") for part in "qkv"}
        taps |= {f"{part}_normed": Tap(f"{attention}.{part}_norm", "out") for part in "qk"}
        taps |= {part: Tap(f"{mlp}.{part}_proj", "out") for part in ("gate", "up")}
    return {f"{stage}.{name}": tap for name, tap in taps.items()}


def _map(body: str, first: str, *, fused: bool) -> dict[str, Tap]:
    """What is alike in all maps.

    Args:
        body: path of the module that holds fc, norm and the layers, with its dot.
        first: path of the first layer.
        fused: a server's modules.
    """
    return {
        "fc_input": Tap(f"{body}fc", "in.0"),
        "fc": Tap(f"{body}fc", "out"),
        "token": Tap(f"{body}embed_tokens", "in.0"),
        "embedding": Tap(f"{first}.input_layernorm", "in.0"),
        "hidden": Tap(f"{first}.hidden_norm", "in.0"),
        "layers.0.embedding_normed": Tap(f"{first}.input_layernorm", "out"),
        "layers.0.hidden_normed": Tap(f"{first}.hidden_norm", "out"),
        **_layer("layers.0", first, f"{first}.post_attention_layernorm", fused=fused),
    }


def _later(path: str, norm: str, *, fused: bool) -> dict[str, Tap]:
    """The layers after the first."""
    taps = _layer("layers.*", path, f"{path}.post_attention_layernorm", fused=fused)
    taps["layers.*.input_normed"] = Tap(f"{path}.{norm}", "out.0" if fused else "out")
    return taps


_SERVED = {
    "output": Tap("model.norm", "out.1"),
    "head_input": Tap("model.norm", "out.0"),
    "position": Tap("model.layers.0", "in.positions"),
}
_TRAINED = {
    "head_input": Tap("lm_head", "in.0"),
    "logits": Tap("lm_head", "out"),
}
MAPS: dict[str, dict[str, Tap]] = {
    # speculators 0.9 `Eagle3DraftModel`
    "speculators": {
        **_map("", "layers.0", fused=False),
        **_later("layers.*", "input_layernorm", fused=False),
        **_TRAINED,
        "aux": Tap("", "in.hidden_states"),
        "output": Tap("norm", "in.0"),
        "position": Tap("layers.0", "in.position_ids"),
    },
    # SpecForge 0.2 `LlamaForCausalLMEagle3`
    "specforge": {
        **_map("", "midlayer", fused=False),
        **_TRAINED,
        "output": Tap("midlayer", "out"),
        "state": Tap("midlayer", "out"),
        "position": Tap("midlayer", "in.position_ids"),
    },
    # SafeAILab's EAGLE `cnets.Model`
    "safeailab": {
        **_map("", "midlayer", fused=False),
        **_TRAINED,
        "output": Tap("midlayer", "out.0"),
        "state": Tap("midlayer", "out.0"),
        "position": Tap("midlayer", "in.position_ids"),
    },
    # SGLang 0.5 `LlamaForCausalLMEagle3`
    "sglang": {
        **_map("model.", "model.layers.0", fused=True),
        **_later("model.layers.*", "hidden_norm", fused=True),
        **_SERVED,
        "aux": Tap("model", "in.forward_batch.spec_info.hidden_states"),
        "state": Tap("model", "out.1.0"),
        "logits": Tap("logits_processor", "out.next_token_logits"),
    },
    # vLLM `Eagle3LlamaForCausalLM`
    "vllm": {
        **_map("model.", "model.layers.0", fused=True),
        **_later("model.layers.*", "input_layernorm", fused=True),
        **_SERVED,
        "state": Tap("model", "out.1"),
        "logits": Tap("logits_processor", "out"),
    },
}


def record(model: Any, names: dict[str, Tap]) -> "Recorder":
    """Listen to a draft from its next call on.

    Args:
        model: a `torch.nn.Module`.
        names: one of `MAPS`, or one of your own: `hidden`, `fc` and `layers.0.attention` have to be
            in it.

    Raises:
        ValueError: when the model lacks the modules that tell its steps apart.
    """
    return Recorder(model, names)


class Recorder:
    """Hooks on a draft's modules, and what they heard; made by `record`."""

    def __init__(self, model: Any, names: dict[str, Tap]) -> None:
        """Put the hooks on."""
        modules = dict(model.named_modules())
        taps = _expanded(names, modules)
        for needed in ("fc", "hidden"):
            if needed not in taps:
                raise ValueError(
                    f"the model has no module {names[needed].module}, expected it for {needed}: "
                    "is it the right map?"
                )
        self._steps: list[tuple[int, dict[str, Any]]] = []  # number, stages as they were heard
        self._waiting: dict[str, Any] = {}  # heard before the first layer is called
        self._ears: list[Any] = []
        # The first layer's own hook comes before the others on it: what it is given is of its step.
        layer = taps["layers.0.attention"].module.rpartition(".self_attn.")[0]
        ear = modules[layer].register_forward_pre_hook(lambda *_: self._begin())
        self._ears.append(ear)
        for stage, tap in taps.items():
            self._listen(modules[tap.module], stage, tap)

    def save(self, path: str) -> None:
        """Write what was heard so far with `torch.save`.

        Raises:
            ValueError: when there is nothing, or steps and requests do not fit together.
        """
        import torch

        steps = max((number for number, _ in self._steps), default=-1) + 1
        metadata = {
            "schema": SCHEMA,
            "version": VERSION,
            "steps": str(steps),
            "writer": "torch_recorder",
        }
        torch.save({"metadata": metadata, "tensors": self.tensors()}, path)

    def stop(self) -> None:
        """Take the hooks off."""
        for ear in self._ears:
            ear.remove()
        self._ears = []

    def tensors(self) -> dict[str, Any]:
        """What was heard so far, as `converters.traces` names it."""
        if not self._steps:
            raise ValueError("no step was heard, expected a call of the draft")
        heard: dict[int, list[dict[str, Any]]] = {}
        for number, stages in self._steps:
            lead = tuple(stages["hidden"].shape[:-1])
            if number == 0:
                places = first = _first_places(lead, stages.get("position"))
            else:
                places = _later_places(number, lead, stages.get("position"), first)
            heard.setdefault(number, []).append(_flattened(stages, lead, places))
        return {
            f"{number}.{name}": _joined([part[name] for part in rounds])
            for number, rounds in sorted(heard.items())
            for name in rounds[0]
            if all(name in part for part in rounds)
        }

    def _listen(self, module: Any, stage: str, tap: Tap) -> None:
        side, *way = tap.source.split(".")

        def heard(value: Any) -> None:
            for name in way:
                if value is None:  # an argument that was not given
                    return
                value = value[int(name)] if name.isdecimal() else _read(value, name)
            if value is not None:
                # A copy: servers go on to work in place.
                self._hear(stage, _part(value, tap.part, module).detach().to("cpu", copy=True))

        def given(_: Any, args: Any, keywords: Any) -> None:
            if way[0].isdecimal() and int(way[0]) < len(args):
                heard(args)
            else:
                bound = inspect.signature(module.forward).bind_partial(*args, **keywords).arguments
                named = bound.pop("kwargs", {}) | bound
                heard(list(named.values()) if way[0].isdecimal() else named)

        if side == "in":
            ear = module.register_forward_pre_hook(given, with_kwargs=True)
        else:
            ear = module.register_forward_hook(lambda _m, _in, out: heard(out))
        self._ears.append(ear)

    def _begin(self) -> None:
        """The first layer is called: a step begins."""
        fused = "fc" in self._waiting
        kept = {name: part for name, part in self._waiting.items() if fused or name not in ONCE}
        self._waiting = {}
        if fused:
            self._steps.append((0, kept))
        elif self._steps:  # else the round had begun before
            self._steps.append((self._steps[-1][0] + 1, kept))

    def _hear(self, stage: str, value: Any) -> None:
        if stage in (*ONCE, "token"):
            self._waiting[stage] = value
        elif self._steps:
            self._steps[-1][1][stage] = value


class _Places(NamedTuple):
    """Which columns a step has: `row` and `column` of those that are `kept`; `rows` requests."""

    row: Any
    column: Any
    kept: Any
    rows: int


def _first_places(lead: tuple[int, ...], position: Any) -> _Places:
    """The columns of step 0, from the shape of its batch and its positions."""
    import torch

    position = _spread(position, lead)
    ascends = torch.ones(lead, dtype=torch.bool)
    ascends[..., 1:] = position[..., 1:] > position[..., :-1]
    if len(lead) == 1:
        row = (~ascends).long().cumsum(0)
        return _Places(row, position, torch.ones_like(ascends), int(row[-1]) + 1)
    kept = ascends.long().cumprod(-1).bool()
    row = torch.arange(lead[0])[:, None].expand(lead)
    return _Places(row.reshape(-1), position.reshape(-1), kept.reshape(-1), lead[0])


def _later_places(number: int, lead: tuple[int, ...], position: Any, first: _Places) -> _Places:
    """The columns of a step that goes on from some, or all, of step 0."""
    import torch

    size = torch.Size(lead).numel()
    if size == len(first.kept):
        return first
    if size != first.rows:
        raise ValueError(
            f"step {number} has {size} columns after a step 0 of {first.rows} requests, expected "
            "one for each: a tree, or another batch?"
        )
    column = _spread(position, lead).reshape(-1) - number
    return _Places(torch.arange(size), column, torch.ones(size, dtype=torch.bool), size)


def _spread(position: Any, lead: tuple[int, ...]) -> Any:
    """A position for each column of a batch."""
    import torch

    position = torch.arange(lead[-1]) if position is None else position
    return position.broadcast_to(lead)


def _flattened(stages: dict[str, Any], lead: tuple[int, ...], places: _Places) -> dict[str, Any]:
    """The stages of one call as `[N, width]`, without padding; those of other columns left out."""
    count = len(places.kept)
    found = {"row": places.row[places.kept].long(), "column": places.column[places.kept].long()}
    for name, value in stages.items():
        whole = value[..., None] if name in INTEGERS else value
        if name == "position" or whole.shape[: len(lead)].numel() != count:
            continue
        flat = whole.reshape(count, -1)[places.kept]
        found |= _summarised(flat) if name == "logits" else {name: flat}
    return found


def _summarised(logits: Any) -> dict[str, Any]:
    logits, size = logits.float(), logits.shape[-1]
    kept = min(size, LOGITS)
    best = logits.topk(min(size, TOP))
    return {
        "logits": logits[:, [index * size // kept for index in range(kept)]],
        "logits_lse": logits.logsumexp(-1, keepdim=True),
        "top_logits": best.values,
        "top_ids": best.indices,
    }


def _joined(parts: list[Any]) -> Any:
    import torch

    return torch.cat(parts).contiguous()


def _expanded(names: dict[str, Tap], modules: dict[str, Any]) -> dict[str, Tap]:
    """The taps whose modules are there, those of later layers once for each."""
    taps: dict[str, Tap] = {}
    for stage, tap in names.items():
        numbers = range(1, len(modules)) if "*" in tap.module else range(1)
        for number in numbers:
            path = tap.module.replace("*", str(number))
            if path not in modules:
                break
            taps[stage.replace("*", str(number))] = tap._replace(module=path)
    return taps


def _read(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name)


def _part(value: Any, part: str, module: Any) -> Any:
    """Half of a tensor's last axis, or one of a fused matrix's three."""
    if part in ("first", "second"):
        return value.chunk(2, dim=-1)[part == "second"]
    if part:
        keys = module.num_kv_heads * module.head_size
        sizes = [value.shape[-1] - 2 * keys, keys, keys]
        return value.split(sizes, dim=-1)["qkv".index(part)]
    return value
