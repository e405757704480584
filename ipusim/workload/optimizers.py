"""Weight updates as operator graphs: what each optimiser computes for every parameter.

Sources of the operations: PopART's optimisers (lib popart: sgd0/1/2, adam, lamb patterns) and the
original papers: momentum SGD; Adam, Kingma and Ba 2014, arXiv:1412.6980; AdamW, Loshchilov and
Hutter 2017, arXiv:1711.05101; LAMB, You et al. 2019, arXiv:1904.00962; LARS, You et al. 2017,
arXiv:1708.03888; RMSprop, Tieleman and Hinton 2012.
"""

from dataclasses import dataclass
from functools import lru_cache

from ipusim.errors import resolve_name
from ipusim.workload.builder import TensorBuilder
from ipusim.workload.graph import Attributes, Elementwise, Graph, Op, Reduce, Tensor


@dataclass(frozen=True, slots=True)
class Optimizer:
    """One rule.

    `states` are tensors of the size of the parameter that are kept from step to step, in 32 bits
    whatever the parameter's type if they are wide. `steps` are elementwise functions in order:
    function, written tensor, read tensors, where "w" is the parameter, "g" the gradient, "t0",
    "t1" temporaries, others are states; a function "norm" writes one number. If it
    `decays_weights`, weights (not vectors) are also added to the gradient, or to the update.

    What norms scale, biases leave out, as the applications have it (graphcore/examples@v2.4.0:
    applications/popart/bert/bert_optimizer/optimizer.py disable_lamb, pytorch/bert/optimization.py
    get_optimizer, tensorflow/bert/ipu_optimizer.py exclude_from_layer_adaptation and
    tensorflow/cnns/training/train.py lars_skip_list; these two leave out the scales of norms, too).
    """

    name: str
    states: tuple[str, ...]
    steps: tuple[str, ...]
    wide_states: bool = False
    decays_weights: bool = False

    def steps_for(self, weight: Tensor) -> tuple[str, ...]:
        """Return the steps that update a weight."""
        if weight.name.endswith(BIAS):
            # Numbers of a whole weight, "n0" and "n1", are read and written for its scaling alone.
            return tuple(step for step in self.steps if " n" not in step)
        return self.steps

    @property
    def sums_in_momentum(self) -> bool:
        """Whether its momentum may hold the sum of gradients (PopTorch's use_combined_accum)."""
        return self.name in ("sgd", "sgd_momentum")


BIAS = "bias"
"""How the name of a bias ends; the applications know one by it, too."""

_DECAY = "scaled_add g g w"
_MOVE = "scaled_add w w m"
_MOMENTUM = ("scaled_add m m g", _MOVE)
_SQUARES = ("square t0 g", "scaled_add v v t0", "sqrt t0 v")
_MOMENTS = ("scaled_add m m g", *_SQUARES, "div t1 m t0")
_STEP = "scaled_add w w t1"
_RATIO = "div n0 n0 n1"

_RULES = (
    ("sgd", (), ("scaled_add w w g",), False, False),
    ("sgd_momentum", ("m",), _MOMENTUM, False, True),
    ("rmsprop", ("v", "m"), (*_SQUARES, "div t1 g t0", "scaled_add m m t1", _MOVE), False, True),
    ("lars", ("m",), ("norm n0 w", "norm n1 g", _RATIO, *_MOMENTUM), False, True),
    ("adam", ("m", "v"), (*_MOMENTS, _STEP), True, False),
    ("adamw", ("m", "v"), (*_MOMENTS, _STEP), True, True),
    ("lamb", ("m", "v"), (*_MOMENTS, "norm n0 w", "norm n1 t1", _RATIO, _STEP), True, True),
)
OPTIMIZERS = {rule[0]: Optimizer(*rule) for rule in _RULES}
"""Every rule by name."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """Replicas that each update their part of a weight, if it has elements enough."""

    replicas: int = 1
    least_elements: int = 1

    def parts(self, weight: Tensor) -> int:
        """Return into how many parts a weight is cut; the last may be padded."""
        return self.replicas if weight.elements >= self.least_elements else 1


WHOLE = Sharding()
"""Every replica updates all of every weight."""


@lru_cache(maxsize=128)
def update_graph(
    network: str,
    weights: tuple[Tensor, ...],
    optimizer: str,
    sharding: Sharding = WHOLE,
    dtype: str | None = None,
) -> Graph:
    """Return the graph that updates weights, or one part of each, whatever the micro-batch.

    A gradient, which an accumulator may hold, has the parameter's type unless `dtype` names
    another. The graph has no inputs and outputs; optimiser states have the role "state" and are
    named ``<parameter>.<state>``.
    """
    rule = OPTIMIZERS[resolve_name("optimizer", optimizer, OPTIMIZERS)]
    g = TensorBuilder(f"{network}, {rule.name}")
    for whole in weights:
        _update_parameter(g, whole, rule, sharding.parts(whole), dtype)
    return g.finish()


def kept_states(graph: Graph) -> list[Tensor]:
    """Return what an update graph keeps from step to step: its states, gradients left out."""
    return [state for state in graph.with_role("state") if not state.name.endswith(".gradient")]


def state_bytes(graph: Graph) -> int:
    """Return the bytes of these."""
    return sum(state.bytes for state in kept_states(graph))


def norms(optimizer: str, weight: Tensor) -> int:
    """Return how many sums over a whole weight a rule needs; shards must add theirs up."""
    return sum(step.startswith("norm ") for step in OPTIMIZERS[optimizer].steps_for(weight))


def _update_parameter(
    g: TensorBuilder, whole: Tensor, rule: Optimizer, parts: int, dtype: str | None
) -> None:
    name, wide = whole.name, "float32" if rule.wide_states else whole.dtype
    shape = whole.shape if parts == 1 else (-(-whole.elements // parts),)
    stored = {
        "w": g.add_tensor(name, shape, whole.dtype, role=whole.role),
        "g": g.add_tensor(f"{name}.gradient", shape, dtype or whole.dtype, role="state"),
    }
    for state in rule.states:
        stored[state] = g.add_tensor(f"{name}.{state}", shape, wide, role="state")
    current = dict(stored)
    decays = rule.decays_weights and len(whole.shape) > 1
    for count, step in enumerate((*((_DECAY,) * decays), *rule.steps_for(whole))):
        function, target, *sources = step.split()
        read, kept = tuple(current[source] for source in sources), stored.get(target)
        like, output = g.tensors[current.get(target, read[0])], f"{name}.update{count}"
        size = (1,) if target.startswith("n") else like.shape
        g.add_tensor(output, size, like.dtype if kept else wide, alias_of=kept)
        params: Attributes = Elementwise(
            function=function, in_place_ok=bool(kept) or target == sources[0]
        )
        if function == "norm":
            elements = g.tensors[read[0]].elements
            params = Reduce(function="sumsquare", outer=1, reduced=elements, inner=1)
        made = {"inputs": read, "outputs": (output,), "phase": "update", "source": name}
        g.ops.append(Op(name=output, params=params, **made))
        current[target] = output
