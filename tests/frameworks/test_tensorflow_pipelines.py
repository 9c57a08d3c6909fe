"""Stages of tf.data pipelines, from made-up models of TensorFlow's autotuning."""

from types import SimpleNamespace

from sm_profiler.hook.tensorflow.pipelines import Stages, describe


def node(name, microseconds, elements, *inputs, parallelism=None):
    values = [] if parallelism is None else [SimpleNamespace(name="parallelism", value=parallelism)]
    return SimpleNamespace(
        name=name, processing_time=int(microseconds * elements * 1e3), num_elements=elements, inputs=list(inputs),
        parameters=values,
    )  # fmt: skip


def model(*nodes):
    return SimpleNamespace(nodes=dict(enumerate(nodes, 1)), output=1)


def dataset(kind, function=None, *inputs):
    made = type(kind, (), {})()
    made._inputs = lambda: inputs
    if function is not None:
        made._map_func = SimpleNamespace(_func=function)
    return made


def decode(x):
    return x


def augment(x):
    return x


def test_functions_belong_to_their_stages():
    nodes = model(
        node("Root", 1, 10, 2),
        node("MapAndBatch", 20, 10, 3, parallelism=2.0),
        node("Map", 3000, 320, 4),
        node("TensorSlice", 0.01, 320),
    )
    chain = dataset(
        "_BatchDataset", None,
        dataset("_ParallelMapDataset", augment, dataset("_MapDataset", decode, dataset("_TensorSliceDataset"))),
    )  # fmt: skip
    about = describe(nodes, chain)
    first, second = about.stages[:2]
    assert about.batches == 10
    assert (first.stage, first.us, first.batch_us) == ("map(decode)", 3000.0, 96_000.0)
    assert (first.function, first.line) == ("decode", decode.__code__.co_firstlineno)
    assert (second.stage, second.batch_us, second.parallel) == ("map(augment)", 10.0, True)


def test_a_fused_stage_has_no_wrong_function():
    nodes = model(node("Root", 1, 10, 2), node("Map", 100, 10))
    chain = dataset("_MapDataset", augment, dataset("_MapDataset", decode))
    assert describe(nodes, chain).stages[0].stage == "map"


def test_stages_inside_an_interleave_are_summed():
    nodes = model(
        node("Root", 1, 10, 2),
        node("Interleave", 5, 100, 3, 4, 5),
        node("Range", 1, 2),
        node("Map", 900, 50),
        node("Map", 1100, 50),
    )
    about = describe(nodes, dataset("_InterleaveDataset", decode, dataset("_RangeDataset")))
    first = about.stages[0]
    assert (first.stage, first.us, first.batch_us) == ("map inside interleave(decode)", 1000.0, 10_000.0)


def test_living_readers_count_for_those_that_have_ended():
    nodes = model(
        node("Root", 1, 10, 2), node("Interleave", 5, 100, 3, 4), node("Range", 1, 2), node("Map", 1000, 20),
    )  # fmt: skip
    about = describe(nodes, dataset("_InterleaveDataset", decode, dataset("_RangeDataset")))
    first = about.stages[0]
    assert (first.us, first.batch_us, about.partial) == (1000.0, 10_000.0, False)


def test_without_living_readers_a_description_is_partial():
    nodes = model(node("Root", 1, 10, 2), node("Interleave", 5, 100, 3), node("Range", 1, 2))
    assert describe(nodes, dataset("_InterleaveDataset", decode, dataset("_RangeDataset"))).partial


def test_an_empty_model_has_no_stages():
    assert describe(model(), dataset("_TensorDataset")).stages == ()


def rows_of_a_file():
    yield 1


class _GeneratorState:
    _generator = staticmethod(rows_of_a_file)


def test_a_generator_that_has_ended_is_known_by_its_dataset():
    state = _GeneratorState()
    nodes = model(node("Root", 1, 10, 2), node("FlatMap", 5, 100, 3), node("Range", 1, 1))
    about = describe(nodes, dataset("_FlatMapDataset", lambda _x: state, dataset("_RangeDataset")))
    lost = about.forgotten
    assert about.partial
    assert (lost.stage, lost.line) == (
        "from_generator(rows_of_a_file)", rows_of_a_file.__code__.co_firstlineno,
    )  # fmt: skip


def test_readers_that_have_ended_are_known_by_the_function_that_makes_them():
    nodes = model(node("Root", 1, 10, 2), node("Interleave", 5, 100, 3), node("Range", 1, 2))
    lost = describe(nodes, dataset("_InterleaveDataset", decode, dataset("_RangeDataset"))).forgotten
    assert (lost.stage, lost.function) == ("interleave(decode)", "decode")


class Iterator:
    def __init__(self, dataset):
        self._dataset = dataset


def test_the_epochs_of_a_dataset_are_inspected_less_and_less_often():
    read = []

    def get_model_proto(iterator):
        read.append(iterator)
        return model(node("Root", 1, 10, 2), node("Map", 100, 10))

    tensorflow = SimpleNamespace(
        data=SimpleNamespace(experimental=SimpleNamespace(get_model_proto=get_model_proto)),
        errors=SimpleNamespace(NotFoundError=KeyError),
        executing_eagerly=lambda: True,
    )
    tracker = SimpleNamespace(latest_number=0)
    session = SimpleNamespace(switch_off=print, quiet=False, append=[].append, tracker=tracker)
    stages, chain = Stages(session, tensorflow), dataset("_MapDataset", decode)
    epochs = [Iterator(chain) for _ in range(8)]
    for epoch in epochs:
        stages._created(None, epoch, chain)
        stages.beat()
    assert read == [epochs[0], epochs[1], epochs[3], epochs[7]]
    other = dataset("_MapDataset", decode)
    first = Iterator(other)
    stages._created(None, first, other)
    stages.beat()
    assert read[4:] == [first]
