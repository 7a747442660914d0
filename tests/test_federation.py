"""The federation: what the constructors accept, what they refuse and in which words, and hold-outs."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsaddle import errors, frames
from fedsaddle.errors import FedsaddleError
from fedsaddle.federation import Federation
from fedsaddle.files import line_of
from fedsaddle.scaling import exponential, logarithm, long_tails

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 0, 1])
GROUPS = np.array(["b", "a", "b", "a", "b", "a"])


def refused(text: str, call: Any) -> None:
    """The call raises our error, in one line that contains the text."""
    with pytest.raises(FedsaddleError) as info:
        call()
    assert text in str(info.value)
    assert "\n" not in str(info.value)


# ------------------------------------------------------------------------------------- to compare with


def test_pooled_and_alone() -> None:
    fed = Federation.from_arrays(X, Y, clients=GROUPS).with_test(X + 100, Y, clients=GROUPS)
    pooled, alone = fed.pooled(), fed.alone(1)
    assert (pooled.n_clients, pooled.n_samples) == (1, 6)
    torch.testing.assert_close(pooled.data["x"], fed.data["x"])
    assert alone.names == ("b",)
    torch.testing.assert_close(alone.client(0)["x"], torch.from_numpy(X[[0, 2, 4]]))
    for part in (pooled, alone):  # both are tested on everybody's data
        assert part.test is not None and part.test.n_clients == 1
        assert sorted(part.test.data["x"][:, 0].tolist()) == sorted((X[:, 0] + 100).tolist())


# ------------------------------------------------------------------------------------------------ from arrays


def test_rows_are_sorted_by_client_in_their_original_order() -> None:
    fed = Federation.from_arrays(X, Y, clients=GROUPS)
    assert fed.names == ("a", "b")
    assert fed.offsets.tolist() == [0, 3, 6]
    assert fed.data["x"][:, 0].tolist() == [2, 6, 10, 0, 4, 8]
    assert fed.client(1)["y"].tolist() == [0, 0, 0]
    assert fed.sizes.tolist() == [3, 3]
    assert fed.owners.tolist() == [0, 0, 0, 1, 1, 1]
    assert (fed.n_clients, fed.n_samples) == (2, 6)
    assert fed.class_counts().tolist() == [[0, 3], [3, 0]]


def test_every_part_knows_which_rows_it_was_made_of(tmp_path: Path) -> None:
    n = 40
    x, groups = np.arange(n, dtype=np.float32)[:, None], np.arange(n) % 3
    own = Federation.from_arrays(x, np.arange(n) // 2 % 2, clients=groups)
    fed = own.holdout(0.3, into="valid").holdout(0.3)
    apart = own.with_test(x, np.arange(n) % 2, clients=groups).test
    for part in (fed, fed.valid, fed.test, fed.alone(1), fed.pooled(), fed.pooled().test, apart):
        assert part is not None and part.rows is not None
        assert part.rows.tolist() == part.data["x"][:, 0].tolist()
    assert apart is not None and apart.rows is not None and apart.rows.tolist() != list(range(n))
    for i, name in enumerate("ab"):
        values = {"v": range(20 * i, 20 * i + 20), "y": np.arange(20) % 2}
        pd.DataFrame(values).to_csv(tmp_path / f"{name}.csv", index=False)
    held = Federation.from_files(tmp_path, label="y").holdout(0.3).test
    assert held is not None and held.rows is not None  # numbered through all files
    assert held.rows.tolist() == held.data["x"][:, 0].tolist() and held.n_samples == 12
    few = {name: tensor[:3] for name, tensor in held.data.items()}
    assert dataclasses.replace(held, data=few, offsets=torch.tensor([0, 1, 3])).rows is None


def test_the_user_s_array_is_copied() -> None:
    x = X.copy()
    fed = Federation.from_arrays(x, Y, clients=[[0, 1, 2], [3, 4, 5]])
    x[:] = -1
    assert fed.data["x"].min() == 0


@pytest.mark.parametrize(
    "x",
    [X, torch.from_numpy(X), X.tolist(), X.astype(np.uint16), X.astype(np.int8), np.asfortranarray(X),
     scipy.sparse.csr_matrix(X), scipy.sparse.coo_array(X), pd.DataFrame(X), pd.DataFrame(X.astype(np.float64))],
)  # fmt: skip
def test_every_kind_of_array_gives_the_same_float32(x: Any) -> None:
    dtype = torch.float32 if isinstance(x, list) else None
    fed = Federation.from_arrays(x, Y, clients=GROUPS, dtype=dtype)
    assert fed.data["x"].dtype == torch.float32
    assert torch.equal(fed.data["x"], Federation.from_arrays(X, Y, clients=GROUPS).data["x"])


def test_float64_arrays_stay_float64_and_images_keep_their_shape() -> None:
    assert Federation.from_arrays(X.astype(np.float64), Y, clients=GROUPS).data["x"].dtype == torch.float64
    fed = Federation.from_arrays(np.zeros((6, 3, 4, 4), np.uint8), Y, clients=GROUPS)
    assert fed.data["x"].shape == (6, 3, 4, 4)
    assert fed.data["x"].dtype == torch.float32


def test_further_fields_travel_with_their_rows() -> None:
    fed = Federation.from_arrays(X, Y, clients=GROUPS, weight=X[:, 0] / 2, age=np.arange(6))
    assert list(fed.data) == ["x", "weight", "age", "y"]
    assert torch.equal(fed.data["weight"] * 2, fed.data["x"][:, 0])
    assert fed.data["age"].tolist() == [1, 3, 5, 0, 2, 4]
    bare = Federation.from_arrays(clients=GROUPS, a=X)
    assert list(bare.data) == ["a"]
    assert "6 samples" in repr(bare)


@pytest.mark.parametrize(
    ("y", "options", "codes", "classes"),
    [
        ([-1, 1, -1, 1, 1, 1], {}, [0, 1, 0, 1, 1, 1], ("-1", "1")),
        ([1.0, 2.0, 1.0, 1.0, 1.0, 1.0], {}, [0, 1, 0, 0, 0, 0], ("1", "2")),
        ([True, False] * 3, {}, [1, 0] * 3, ("False", "True")),
        ([True, False] * 3, {"positive": 0}, [0, 1] * 3, ("True", "False")),
        (["no", "yes"] * 3, {"positive": "no"}, [1, 0] * 3, ("yes", "no")),
        ([3, 4, 5, 3, 4, 5], {"positive": 4}, [0, 1, 0, 0, 1, 0], ("rest", "4")),
        ([3, 4, 5, 3, 4, 5], {"positive": "4"}, [0, 1, 0, 0, 1, 0], ("rest", "4")),
        ([3, 4, 5, 3, 4, 5], {"positive": [4, 5.0]}, [0, 1, 1, 0, 1, 1], ("3", "positive")),
        ([0, 2, 0, 2, 0, 2], {"classes": ["a", "b", "c"]}, [0, 2] * 3, ("a", "b", "c")),
        (["hi", "lo"] * 3, {"classes": ["lo", "hi"]}, [1, 0] * 3, ("lo", "hi")),
        ([1, 2, 1, 2, 1, 2], {"classes": ["1", "2", "3"]}, [1, 2] * 3, ("1", "2", "3")),
        ([7] * 6, {}, [0] * 6, ("7",)),
        (pd.Series(["x", "y"] * 3, dtype="category"), {}, [0, 1] * 3, ("x", "y")),
        (pd.array([1, 0] * 3, dtype="Int64"), {}, [1, 0] * 3, ("0", "1")),
        ([[1], [0], [1], [0], [1], [0]], {}, [1, 0] * 3, ("0", "1")),
    ],
)
def test_labels_become_class_indices(
    y: Any, options: Any, codes: list[int], classes: tuple[str, ...]
) -> None:
    fed = Federation.from_arrays(X, y, clients=[[0, 1, 2], [3, 4, 5]], **options)
    assert fed.data["y"].dtype == torch.int64
    assert fed.data["y"].tolist() == codes
    assert fed.classes == classes


def test_regression_is_recognised_or_asked_for() -> None:
    rng = np.random.default_rng(0)
    x, groups = rng.random((60, 2)), np.arange(60) % 3
    assert Federation.from_arrays(x, rng.random(60), clients=groups).is_regression
    assert not Federation.from_arrays(x, np.arange(60.0), clients=groups).is_regression
    fed = Federation.from_arrays(x, np.arange(60), clients=groups, task="regression")
    assert fed.is_regression
    assert fed.classes == ()
    assert fed.data["y"].dtype == torch.float64
    assert "regression" in repr(fed)
    refused("class_counts needs class labels", fed.class_counts)
    assert fed.holdout(0.25).test is not None


def test_group_labels_sort_as_numbers_and_name_the_clients() -> None:
    fed = Federation.from_arrays(X, Y, clients=np.array([10, 9, 10, 9, 2, 2]))
    assert fed.names == ("2", "9", "10")
    assert Federation.from_arrays(X, Y, clients=[[0, 1, 2], [3, 4, 5]]).names == ("0", "1")
    assert Federation.from_arrays(X, Y, clients=[[0, 1], [3, 5]], names=["l", "r"]).names == ("l", "r")
    assert Federation.from_arrays(X, Y, clients=np.array([[0, 1, 2], [3, 4, 5]])).n_clients == 2
    mixed = np.array(["a", 1, "a", 1, "a", 1], dtype=object)
    assert Federation.from_arrays(X, Y, clients=mixed).names == ("1", "a")


def with_value(value: float, row: int = 4, column: int = 1) -> np.ndarray:
    x = X.copy()
    x[row, column] = value
    return x


@pytest.mark.parametrize(
    ("text", "call"),
    [
        (
            "x has NaN at row 4, column 'age' (1): give impute=\"median\" to fill them",
            lambda: Federation.from_arrays(with_value(np.nan), Y, clients=GROUPS, feature_names=["id", "age"]),
        ),
        ("x has -inf at row 4, column 1:", lambda: Federation.from_arrays(with_value(-np.inf), Y, clients=GROUPS)),
        (
            "x has inf at row 5, position (0, 1)",
            lambda: Federation.from_arrays(with_value(np.inf, 5).reshape(6, 1, 2), Y, clients=GROUPS),
        ),
        ("w has NaN at row 2", lambda: Federation.from_arrays(X, Y, clients=GROUPS, w=[0, 0, np.nan, 0, 0, 0])),
        ("y has no value at row 1", lambda: Federation.from_arrays(X, [0, np.nan, 1, 0, 1, 0], clients=GROUPS)),
        ("y has no value at row 3", lambda: Federation.from_arrays(X, ["a", "b", "a", None, "a", "b"], clients=GROUPS)),
        ("y has inf at row 0", lambda: Federation.from_arrays(X, [np.inf, 1, 1, 0, 1, 0], clients=GROUPS)),
        (
            "y has no value at row 0: drop rows without a label",
            lambda: Federation.from_arrays(X, [np.nan, 1, 1, 0, 1, 0], clients=GROUPS, task="regression"),
        ),
        ("y has 5 rows, x has 6", lambda: Federation.from_arrays(X, Y[:5], clients=GROUPS)),
        ("y must hold one value a row, got shape [6, 2]", lambda: Federation.from_arrays(X, X, clients=GROUPS)),
        ("y has no rows", lambda: Federation.from_arrays(X, [], clients=GROUPS)),
        ("x has no rows", lambda: Federation.from_arrays(X[:0], [], clients=GROUPS)),
        ("a federation needs data", lambda: Federation.from_arrays(clients=GROUPS)),
        ("x must be numeric, got dtype <U1", lambda: Federation.from_arrays(GROUPS, Y, clients=GROUPS)),
        ("x is ragged", lambda: Federation.from_arrays([[1, 2], [3]], [0, 1], clients=[0, 1])),
        (
            "positive=9 never occurs in y: choose from '0', '1'",
            lambda: Federation.from_arrays(X, Y, clients=GROUPS, positive=9),
        ),
        (
            "y has label '2', expected an index 0..1",
            lambda: Federation.from_arrays(X, [0, 2, 0, 0, 0, 0], clients=GROUPS, classes=["a", "b"]),
        ),
        (
            "y has label 'z', expected one of 'a', 'b'",
            lambda: Federation.from_arrays(X, list("abzaba"), clients=GROUPS, classes=["a", "b"]),
        ),
        ("task must be", lambda: Federation.from_arrays(X, Y, clients=GROUPS, task="ranking")),
        (
            "has no meaning in regression",
            lambda: Federation.from_arrays(X, Y, clients=GROUPS, task="regression", positive=1),
        ),
        ("feature_names has 3 names", lambda: Federation.from_arrays(X, Y, clients=GROUPS, feature_names=list("abc"))),
        ("at least 2 clients, got 1 ('a')", lambda: Federation.from_arrays(X, Y, clients=["a"] * 6)),
        ("clients has 5 labels for 6 rows", lambda: Federation.from_arrays(X, Y, clients=GROUPS[:5])),
        ("clients has no value at row 2", lambda: Federation.from_arrays(X, Y, clients=["a", "b", None, "a", "b", "a"])),
        ("client '1' has no samples", lambda: Federation.from_arrays(X, Y, clients=[[0, 1], []])),
        ("client 'r' has no samples", lambda: Federation.from_arrays(X, Y, clients=[[0], []], names=["l", "r"])),
        ("the partition has row 6, the data rows 0..5", lambda: Federation.from_arrays(X, Y, clients=[[0], [6]])),
        ("row 3 is given to clients '0' and '1'", lambda: Federation.from_arrays(X, Y, clients=[[0, 3], [3]])),
        ("names has 3 entries", lambda: Federation.from_arrays(X, Y, clients=[[0], [1]], names=list("abc"))),
    ],
)  # fmt: skip
def test_bad_arrays_are_refused_with_a_remedy(text: str, call: Any) -> None:
    refused(text, call)


def test_a_sparse_matrix_that_is_too_large_when_dense_is_refused() -> None:
    x = scipy.sparse.csr_matrix((100_000, 1_000_000), dtype=np.float32)
    refused("is sparse and takes 372.5 GiB when dense", lambda: Federation.from_arrays(x, clients=[[0], [1]]))


def test_a_sum_that_overflows_is_not_taken_for_inf() -> None:
    x = np.full((6, 2), 3e38, dtype=np.float32)
    assert Federation.from_arrays(x, Y, clients=GROUPS).n_samples == 6


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("offsets must be int64 [3]", {"offsets": torch.tensor([0, 6])}),
        ("offsets must be int64 [3]", {"offsets": torch.tensor([0, 3, 6], dtype=torch.int32)}),
        ("offsets must rise from 0 to the 6 rows", {"offsets": torch.tensor([0, 3, 5])}),
        ("offsets must rise from 0 to the 6 rows", {"offsets": torch.tensor([0, 7, 6])}),
        ("every field needs one row a sample", {"data": {"x": torch.zeros(6), "y": torch.zeros(5)}}),
        ("every field needs one row a sample", {"data": {}}),
    ],
)
def test_a_federation_built_by_hand_is_checked(text: str, changes: Any) -> None:
    fed = Federation.from_arrays(X, Y, clients=GROUPS)
    refused(text, lambda: dataclasses.replace(fed, **changes))
    three = Federation.from_arrays(X, Y, clients=[[0], [1], [2]])
    refused("test must have 2 clients or one pooled set, got 3", lambda: dataclasses.replace(fed, test=three))
    refused("client index must be in 0..1, got 2", lambda: fed.client(2))


# -------------------------------------------------------------------------------------------- hold-out, tests


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(0, 12), min_size=3, max_size=3).filter(any), min_size=2, max_size=6),
    share=st.floats(0.05, 0.9),
    seed=st.integers(0, 9),
)
def test_holdout_is_stratified_complete_and_deterministic(
    sizes: list[list[int]], share: float, seed: int
) -> None:
    y = np.concatenate([np.repeat([0, 1, 2], counts) for counts in sizes])
    groups = np.repeat(np.arange(len(sizes)), [sum(counts) for counts in sizes])
    fed = Federation.from_arrays(np.arange(len(y))[:, None], y, clients=groups, classes=list("abc"))
    try:
        split = fed.holdout(share, seed)
    except FedsaddleError as error:
        assert "large enough" in str(error)
        return
    assert split.test is not None
    ids = torch.cat([split.data["x"], split.test.data["x"]]).flatten().long()
    assert sorted(ids.tolist()) == list(range(len(y)))
    for i, counts in enumerate(split.class_counts()):
        owned = np.array(sizes[i])
        held = split.test.class_counts()[i]
        assert (counts[owned > 0] > 0).all()
        assert (counts + held == owned).all()
        assert (np.abs(held - share * owned) <= 1 + 1e-9).all()
        assert held.sum() <= np.floor(share * owned.sum() + 0.5)
    again = fed.holdout(share, seed)
    assert torch.equal(again.data["x"], split.data["x"])


def test_holdout_meets_the_share_exactly_when_it_can() -> None:
    fed = Federation.from_arrays(np.zeros((40, 1)), np.arange(40) % 4, clients=np.arange(40) // 20)
    test = fed.holdout(0.3, seed=3).test
    assert test is not None
    assert test.sizes.tolist() == [6, 6]
    assert not torch.equal(fed.holdout(0.3, seed=3).data["y"], fed.holdout(0.3, seed=4).data["y"])
    valid = fed.holdout(0.3).holdout(0.5, into="valid")
    assert valid.valid is not None
    assert valid.n_samples == 14


def test_holdout_refusals() -> None:
    fed = Federation.from_arrays(X, Y, clients=GROUPS)
    refused("holdout: share must be in (0, 1), got 1.5", lambda: fed.holdout(1.5))
    refused("holdout: into must be 'test' or 'valid', got 'train'", lambda: fed.holdout(0.5, into="train"))
    refused("already has a test set", lambda: fed.holdout(0.5).holdout(0.5))
    refused("no client is large enough", lambda: fed.holdout(0.01))


def test_test_sets_speak_the_training_labels() -> None:
    fed = Federation.from_arrays(X, ["no", "yes"] * 3, clients=GROUPS)
    pooled = fed.with_test(X[:3], ["yes", "yes", "no"])
    assert pooled.test is not None
    assert pooled.test.names == ("all",)
    assert pooled.test.data["y"].tolist() == [1, 1, 0]
    assert fed.with_test(X[:2], [1, 0], into="valid").valid.data["y"].tolist() == [1, 0]  # type: ignore[union-attr]
    each = fed.with_test(X[:3], ["yes", "no", "no"], clients=["b", "a", "b"]).test
    assert each is not None
    assert each.names == ("a", "b")
    assert each.data["y"].tolist() == [0, 1, 0]
    parts = fed.with_test(X[:3], ["yes", "no", "no"], clients=[[], [0, 2]]).test
    assert parts is not None
    assert parts.sizes.tolist() == [0, 2]
    many = Federation.from_arrays(X, [3, 4, 5, 3, 4, 5], clients=GROUPS, positive=[4, 5])
    assert many.with_test(X[:2], [3, 4], positive=[4, 5]).test.data["y"].tolist() == [0, 1]  # type: ignore[union-attr]
    assert "3 test samples at the clients" in repr(
        fed.with_test(X[:3], ["yes", "no", "no"], clients=["b", "a", "b"])
    )
    assert "3 test samples in one pool" in repr(pooled)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("test y has label 'maybe', training has 'no', 'yes'", {"x": X[:1], "y": ["maybe"]}),
        ("test x has samples of shape [1], training [2]", {"x": X[:1, :1], "y": ["no"]}),
        ("test has fields ['x'], training ['x', 'y']", {"x": X[:1]}),
        ("y has 2 rows, x has 1", {"x": X[:1], "y": ["no", "no"]}),
        ("x has NaN at row 0, column 0", {"x": [[np.nan, 1.0]], "y": ["no"]}),
        ("client 'c' is not in the federation", {"x": X[:1], "y": ["no"], "clients": ["c"]}),
        ("names has 2 entries, the partition has 1", {"x": X[:1], "y": ["no"], "clients": [[0]]}),
        ("into must be 'test' or 'valid'", {"x": X[:1], "y": ["no"], "into": "train"}),
    ],
)
def test_bad_test_sets_are_refused(text: str, arguments: Any) -> None:
    fed = Federation.from_arrays(X, ["no", "yes"] * 3, clients=GROUPS)
    refused(text, lambda: fed.with_test(**arguments))


@pytest.mark.parametrize("how", ["unit", "symmetric", "standard", "log"])
def test_a_constant_column_is_scaled_to_zero(how: Any) -> None:
    x = np.stack([np.full(3, 0.1), np.arange(3)], axis=1)  # the mean of three times 0.1 is not 0.1
    scaled = Federation.from_arrays(x, clients=[0, 1, 1]).scaled(how).data["x"]
    assert not scaled[:, 0].any()
    assert scaled[:, 1].std() > 0


@pytest.mark.parametrize("how", ["unit", "symmetric", "standard"])
def test_numbers_too_large_to_scale_are_refused(how: Any) -> None:
    """Their deviation is infinite, and all others would become 0."""
    x = np.stack([np.arange(4.0), [1.0, -1.5e308, 1.5e308, 2.0]], axis=1)
    fed = Federation.from_arrays(x, clients=[0, 1, 1, 0])
    refused("scaled: column 1 has numbers too large to scale", lambda: fed.scaled(how))


def test_logarithms() -> None:
    x = np.stack([[0.0, -9.0, 99.0, 999.0], [0, 0, 1, 1]], axis=1)
    fed = Federation.from_arrays(x, clients=[0, 1, 1, 0]).with_test(-x, clients=[0, 1, 1, 0])
    scaled = fed.scaled("log")
    log = np.sign(x) * np.log10(1 + np.abs(x))  # of any base, scaled
    assert sorted(log[:, 0]) == pytest.approx([-1, 0, 2, 3])
    order = fed.rows.numpy()
    expected = (log - log.mean(0)) / log.std(0)
    np.testing.assert_allclose(scaled.data["x"], expected[order], rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        scaled.test.data["x"], ((-log - log.mean(0)) / log.std(0))[order], rtol=0, atol=1e-12
    )
    assert torch.allclose(exponential(logarithm(fed.data["x"])), fed.data["x"])
    refused(
        "'log' is of features as they are, and these are scaled; scale once", lambda: scaled.scaled("log")
    )


@pytest.mark.parametrize("how", ["unit", "symmetric", "standard", "log"])
@pytest.mark.parametrize("into", ["test", "valid"])
def test_a_test_set_that_is_not_scaled_is_told_of(how: Any, into: str) -> None:
    rng = np.random.default_rng(0)
    x = np.stack([rng.uniform(0, 1, 200), rng.normal(150, 66, 200), np.ones(200)], axis=1)
    table = pd.DataFrame(x, columns=["same", "dose", "one"]).assign(site=np.arange(200) % 4)
    fed = Federation.from_frame(table[:150], group="site", label=None).scaled(how)
    new = table[150:].drop(columns="site")
    with pytest.warns(
        UserWarning, match=f"{into} x is taken as scaled already, but column 'dose' is far"
    ) as said:
        fed.with_test(new, into=into)
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        right = Federation.from_frame(table[:150], group="site", label=None).with_test(new, into=into)
        late = fed.with_test(fed.scaling(torch.tensor(new.to_numpy())), into=into)  # as the warning says
        few = fed.data["x"].mean(0) + fed.data["x"].std(0).expand(2, -1)
        fed.with_test(few, into=into)  # unlike the mean, as samples are
        Federation.from_frame(table[:150], group="site", label=None).scaled("none").with_test(new, into=into)
    torch.testing.assert_close(getattr(late, into).data["x"], getattr(right.scaled(how), into).data["x"])


def test_images_that_are_not_scaled_are_told_of() -> None:
    images = np.random.default_rng(0).uniform(0, 255, (40, 3, 4, 4))
    fed = Federation.from_arrays(images, clients=[0, 1] * 20).scaled("unit")
    with pytest.warns(UserWarning, match="but column 0 of x is far from its training samples"):
        fed.with_test(images[:5])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fed.with_test(fed.scaling(torch.from_numpy(images[:5])))


def test_gaps_are_filled_by_statistics_of_logarithms() -> None:
    x = np.array([[0.0], [np.nan], [99.0], [np.nan]])
    fed = Federation.from_arrays(x, clients=[0, 0, 1, 1], impute="mean")
    assert fed.data["x"].flatten().tolist() == [0, 49.5, 99, 49.5]
    scaled = fed.scaled("log")
    assert scaled.filling is not None and scaled.filling.values.item() == pytest.approx(9)
    np.testing.assert_allclose(scaled.data["x"].flatten(), [-(2**0.5), 0, 2**0.5, 0], rtol=0, atol=1e-9)


def test_a_long_tail_is_said() -> None:
    rng = np.random.default_rng(0)
    rare = np.arange(1000) == 0  # of two values, 32 deviations from the mean
    counts = np.where(np.arange(1000) % 10 == 0, 2.0, 0.0)  # most are equal
    counts[:2] = 50.0, 1.0
    x = pd.DataFrame({"age": rng.standard_normal(1000), "amount": np.exp(2 * rng.standard_normal(1000)), "rare": rare * 1.0,
                      "paid": -np.exp(1.5 * rng.standard_normal(1000)), "claims": counts})  # fmt: skip
    fed = Federation.from_frame(
        x.assign(site=np.arange(1000) % 2, y=np.arange(1000) % 3 == 0), group="site", label="y"
    )
    quartiles = np.percentile(x["amount"], [25, 50, 75])
    far = (x["amount"].max() - quartiles[1]) / (quartiles[2] - quartiles[0]) * 1.349
    said = rf"^column 'amount' has values up to {far:.0f} times its usual spread from the median \(and 1 more: 'paid'\);"
    with pytest.warns(UserWarning, match=said):
        fed.scaled("standard")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fed.scaled("log").scaled("standard")
        fed.scaled("unit").scaled("standard")  # too late for logarithms
    assert [i for i, _ in long_tails(torch.from_numpy(x.to_numpy())[:200])] == [1]  # few rows suffice
    counts[0] = 5000.0
    assert long_tails(torch.from_numpy(counts)[:, None]) == [(0, pytest.approx(5000 / counts.std()))]


# ------------------------------------------------------------------------------------------------- from frame


def frame() -> pd.DataFrame:
    table = {
        "hospital": list("abab"),
        "age": [60, 71, 55, 48],
        "bp": [1.5, 1.2, np.pi, 0],
        "died": ["y", "n", "n", "y"],
    }
    return pd.DataFrame(table, index=[9, 7, 5, 3])


def test_from_frame() -> None:
    fed = Federation.from_frame(frame(), group="hospital", label="died", positive="y")
    assert fed.names == ("a", "b")
    assert fed.feature_names == ("age", "bp")
    assert fed.data["x"].dtype == torch.float32
    assert fed.data["x"][:, 0].tolist() == [60, 55, 71, 48]
    assert fed.classes == ("n", "y")
    one = Federation.from_frame(frame(), group="hospital", label=None, features=["bp"])
    assert list(one.data) == ["x"]
    assert one.data["x"].shape == (4, 1)
    logical = frame().assign(smoker=[True, False, True, False])
    assert Federation.from_frame(logical, group="hospital", label="died").data["x"].shape == (4, 3)


def test_text_becomes_a_feature_for_each_value(tmp_path: Path) -> None:
    """Whatever file a value occurs in."""
    mixed = frame().assign(sex=list("mfmm"), ward=pd.Categorical(["b", "a", "b", "c"]))
    made = Federation.from_frame(mixed, group="hospital", label="died", features=["sex", "age", "ward"])
    assert made.feature_names == ("sex=f", "sex=m", "age", "ward=a", "ward=b", "ward=c")
    order = [i for name in made.names for i in range(4) if mixed["hospital"].iloc[i] == name]
    expected = pd.get_dummies(mixed[["sex", "ward"]]).iloc[order]
    for column, name in enumerate(made.feature_names):
        if name != "age":
            assert made.data["x"][:, column].tolist() == expected[name.replace("=", "_")].tolist()
    codes = frame().assign(ward=pd.Categorical([10, 2, 10, 2]))  # numbers that the user calls names
    assert Federation.from_frame(codes, group="hospital", label="died").feature_names[2:] == (
        "ward=10",
        "ward=2",
    )
    (tmp_path / "a.csv").write_text("sex,y\nf,0\nm,1\n")
    (tmp_path / "b.csv").write_text("y,sex\n1,x\n0,f\n")
    files = Federation.from_files(tmp_path, label="y")
    assert files.feature_names == ("sex=f", "sex=m", "sex=x")
    assert files.data["x"].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]


def test_columns_of_a_test_frame_are_found_by_name() -> None:
    """Whatever their order, and whichever of the texts its rows have."""
    mixed = frame().assign(ward=list("abca"))
    fed = Federation.from_frame(mixed, group="hospital", label="died")
    new = pd.DataFrame({"ward": ["c", "a"], "bp": [1.0, 2.0], "age": [30, 40]})
    test = fed.with_test(new, ["y", "n"]).test
    assert test is not None and fed.feature_names == ("age", "bp", "ward=a", "ward=b", "ward=c")
    assert test.data["x"].tolist() == [[30, 1, 0, 0, 1], [40, 2, 1, 0, 0]]
    for text, other in (
        ("x has 'ward=d', which the training data have not", new.assign(ward=["a", "d"])),
        ("x has no column 'bp', which the training data have", new.drop(columns="bp")),
        ("x has no column 'ward=a', which the training data have", new.drop(columns="ward")),
        ("x has 'ward', which the training data have not", new.assign(ward=[1, 2])),
    ):
        refused(text, lambda other=other: fed.with_test(other, ["y", "n"]))


def test_a_long_text_costs_no_more_than_its_own_length() -> None:
    """Once, not in every row."""
    import tracemalloc

    table = pd.DataFrame({"note": ["a"] * 20_000 + ["b" * 20_000]})  # 1.6 GB as fixed-width text
    tracemalloc.start()
    (values,), names = frames.one_hot([table])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert names == ("note=a", "note=" + "b" * 20_000) and values.sum(0).tolist() == [20_000, 1]
    assert peak < 20e6


@pytest.mark.parametrize(
    ("text", "change", "options"),
    [
        ("group: the table has no column 'clinic': it has 'hospital', 'age'", {}, {"group": "clinic"}),
        ("group: the table has no column 'hopital': did you mean 'hospital'?", {}, {"group": "hopital"}),
        ("label: the table has no column 'dead'", {}, {"label": "dead"}),
        ("features: the table has no column 'height'", {}, {"features": ["height"]}),
        ("drop: the table has no column 'height'", {}, {"drop": ["height"]}),
        ("positive='Y' never occurs in label 'died': choose from 'n', 'y'", {}, {"positive": "Y"}),
        ("column 'day' is neither numbers nor text (datetime64", {"day": pd.Timestamp("2020-01-01")}, {}),
        (
            "1 column has gaps ('sex' 1 of 4 rows), the first in 'sex' at row 1",
            {"sex": ["m", None, "m", "f"]},
            {},
        ),
        ("column 'bmi' has numbers, but 'high' at row 3: correct it", {"bmi": [21, 22, "23.5", "high"]}, {}),
        ("column 'bmi' has numbers stored as text", {"bmi": list("2134")}, {}),
        ("column 'age' is there twice: rename or drop one", {}, {"features": ["age", "bp", "age"]}),
        (
            "3 columns have gaps ('age' 1, 'bp' 2, 'sex' 3 of 4 rows), the first in 'age' at row 2: "
            'give impute="median" to fill them, or drop the columns or the rows',
            {"age": [60, 71, None, 48], "bp": [1, None, 3, None], "sex": [None, None, "f", None]},
            {},
        ),
        ("('age' 1 of 4 rows)", {"age": pd.array([60, None, 5, 48], dtype="Int64")}, {}),
        ("group 'hospital' has no value at row 3: drop rows", {"hospital": ["a", "b", "a", None]}, {}),
        (
            "label 'died' has no value at row 0: drop rows without a label, or label",
            {"died": [None, "n", "n", "y"]},
            {},
        ),
        (
            "label 'died' has no value in 2 of 4 rows, the first at row 1: drop",
            {"died": [1, None, None, 0]},
            {},
        ),
        ("label 'died' has no value at row 0", {"died": [None, 0.5, 0.2, 0.3]}, {"task": "regression"}),
        ("at least 2 clients, got 1 ('a')", {"hospital": "a"}, {}),
    ],
)
def test_bad_frames_are_refused(text: str, change: Any, options: Any) -> None:
    table = frame().reset_index(drop=True).assign(**change)
    refused(text, lambda: Federation.from_frame(table, **({"group": "hospital", "label": "died"} | options)))


def test_several_values_that_count_as_negative_are_said() -> None:
    table = pd.concat([frame()] * 5, ignore_index=True)
    said = ["no"] * 8 + list("abcdef") + ["yes"] * 6
    with pytest.warns(UserWarning, match="negative") as seen:
        fed = Federation.from_frame(table.assign(died=said), group="hospital", label="died", positive="yes")
    assert [w.filename for w in seen] == [__file__] and fed.classes == ("rest", "yes")
    assert str(seen[0].message).startswith(
        "label 'died': 'no' (8 rows), 'a' (1), 'b' (1), 'c' (1) and 3 others (3) count as negative; "
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Federation.from_frame(table, group="hospital", label="died", positive="y")
        Federation.from_arrays(table[["age"]], said, clients=table.hospital, positive="yes")  # of no column


# ------------------------------------------------------------------------------------------------- from files


def test_from_csv_files_by_folder_glob_and_list(tmp_path: Path) -> None:
    rows = frame().drop(columns="hospital")
    rows[:2].to_csv(tmp_path / "north.csv", index=False)
    rows[2:][["died", "bp", "age"]].to_csv(tmp_path / "south.csv.gz", index=False)  # other order, compressed
    (tmp_path / "readme.md").write_text("not data")
    for paths in (
        tmp_path,
        str(tmp_path / "*.csv*"),
        [tmp_path / "north.csv", str(tmp_path / "south.csv.gz")],
    ):
        fed = Federation.from_files(paths, label="died", positive="y")
        assert fed.names == ("north", "south")
        assert fed.feature_names == ("age", "bp")
        assert fed.data["x"][:, 0].tolist() == [60, 71, 55, 48]
        assert fed.data["y"].tolist() == [1, 0, 0, 1]


def test_columns_are_dropped_and_separated_as_told(tmp_path: Path) -> None:
    for name in ("north", "south"):
        (tmp_path / f"{name}.csv").write_text("id;age;died\nP-1;60,5;y\nP-2;71;n\n")
    fed = Federation.from_files(tmp_path, label="died", drop=["id"], sep=";", decimal=",")
    assert fed.feature_names == ("age",)
    assert fed.data["x"].flatten().tolist() == [60.5, 71, 60.5, 71]
    both = frame()
    assert Federation.from_frame(both, group="hospital", label="died", drop=["bp"]).feature_names == ("age",)
    for options, text in (
        ({"drop": ["pb"]}, "no column 'pb'"),
        ({"features": ["bp"], "drop": ["bp"]}, "in drop"),
    ):
        refused(text, lambda o=options: Federation.from_frame(both, group="hospital", label="died", **o))


def test_the_line_of_a_row_in_a_compressed_file(tmp_path: Path) -> None:
    file = tmp_path / "a.csv.gz"
    file.write_bytes(gzip.compress(b'note,age\n"two\nlines",1\n\nx,2\n'))
    assert [line_of(file, row) for row in (0, 1)] == [2, 5]


def test_the_line_of_a_row_after_a_very_long_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.csv"
    file.write_text(f"note,age\n{'x' * 200_000},1\ny,2\n")
    set_limit = csv.field_size_limit

    def on_windows(limit: int) -> int:
        """A C long has 32 bits there."""
        if limit >= 2**31:
            raise OverflowError("Python int too large to convert to C long")
        return set_limit(limit)

    monkeypatch.setattr(csv, "field_size_limit", on_windows)
    assert line_of(file, 1) == 3


def test_from_npz_and_libsvm_files(tmp_path: Path) -> None:
    for name in ("s1", "s2"):
        np.savez(tmp_path / f"{name}.npz", x=np.ones((3, 2, 2)), y=np.array([0, 1, 1]))
    fed = Federation.from_files(tmp_path)
    assert fed.data["x"].shape == (6, 2, 2)
    assert fed.data["x"].dtype == torch.float32
    import bz2

    text = tmp_path / "text"
    text.mkdir()
    (text / "one.svm").write_text("+1 1:0.5 3:2\n-1 2:1\n")
    (text / "two.bz2").write_bytes(bz2.compress(b"-1 1:1\n"))
    fed = Federation.from_files(text)
    assert fed.names == ("one", "two")
    assert fed.data["x"].tolist() == [[0.5, 0, 2], [0, 1, 0], [1, 0, 0]]
    assert fed.data["y"].tolist() == [1, 0, 0]


def test_parquet(tmp_path: Path) -> None:
    rows = frame().drop(columns="hospital")
    try:
        rows[:2].to_parquet(tmp_path / "a.parquet")
        rows[2:].to_parquet(tmp_path / "b.parquet")
    except ImportError:
        (tmp_path / "a.parquet").write_bytes(b"PAR1")
        refused("needs pyarrow: pip install pyarrow", lambda: Federation.from_files(tmp_path, label="died"))
    else:
        assert Federation.from_files(tmp_path, label="died").n_samples == 4


@pytest.mark.parametrize(
    ("text", "files", "options"),
    [
        ("b.csv has no column 'age', which a.csv has", {"a.csv": "age,y\n1,0\n", "b.csv": "old,y\n1,0\n"}, {}),
        ("b.csv has column 'bp', which a.csv has not", {"a.csv": "age,y\n1,0\n", "b.csv": "age,bp,y\n1,2,0\n"}, {}),
        (
            "b.csv: 1 column has gaps ('age' 2 of 5 rows), the first in 'age' at row 1, line 3 of the file: give impute",
            {"a.csv": "age,y\n1,0\n", "b.csv": "age,y\n1,0\n,1\n", "c.csv": "age,y\n1,0\n,1\n"},
            {},
        ),
        (
            "the first in 'age' at row 2, line 8 of the file",  # blank lines, a field of two lines
            {"a.csv": "n,age,y\n0,1,0\n", "b.csv": 'n,age,y\n\n0,1,0\n  \n1,2,"\n1"\n\n2,,1\n'},
            {"drop": []},
        ),
        ("b.csv: label 'y' has no value at row 0, line 2 of", {"a.csv": "age,y\n1,0\n", "b.csv": "age,y\n1,\n"}, {}),
        ("a.csv has no column 'agee': did you mean 'age'? it has", {"a.csv": "age,y\n1,0\n"}, {"drop": ["agee"]}),
        ("sep must be one character, got ';;'", {"a.csv": "age,y\n1,0\n"}, {"sep": ";;"}),
        ("encoding must be one of 'utf-8', 'cp1250', 'cp1251', 'cp1252', got", {"a.csv": "age,y\n"}, {"encoding": "x"}),
        ("decimal must be '.' or ',', got ';'", {"a.csv": "age,y\n1,0\n"}, {"decimal": ";"}),
        ("has no named columns: leave drop out", {"a.txt": "1 1:1\n"}, {"drop": ["age"]}),
        ("'age' is text in a.csv and numbers in b.csv", {"a.csv": "age,y\nold,0\n", "b.csv": "age,y\n1,0\n"}, {}),
        (
            "b.csv: column 'age' has numbers, but 'old' at row 2, line 4 of the file",
            {"a.csv": "age,y\n1,0\n", "b.csv": "age,y\n1,0\n3,0\nold,1\n"},
            {},
        ),
        (
            "column 'name' is text with 51 distinct values, at most 50",
            {"a.csv": "name,y\n" + "".join(f"n{i},{i % 2}\n" for i in range(50)), "b.csv": "name,y\nother,1\n"},
            {},
        ),
        ("label: ", {"a.csv": "age\n1\n", "b.csv": "age\n1\n"}, {}),
        ("a.csv has no column 'y': it has 'age'", {"a.csv": "age\n1\n", "b.csv": "age\n1\n"}, {}),
        ("name its label column with label=", {"a.csv": "age,y\n1,0\n", "b.csv": "age,y\n1,0\n"}, {"label": None}),
        ("b.csv has no rows", {"a.csv": "age,y\n1,0\n", "b.csv": "age,y\n"}, {}),
        ("at least 2 clients, got 1 ('a')", {"a.csv": "age,y\n1,0\n"}, {}),
        ("two files name the client 'a'", {"a.csv": "age,y\n1,0\n", "a.txt": "1 1:1\n"}, {}),
        ("cannot be read as libsvm", {"a.txt": "what is this\n", "b.txt": "1 1:1\n"}, {}),
        ("cannot be read as csv", {"a.csv": "", "b.csv": ""}, {}),
        ("cannot be read as npz", {"a.npz": "text", "b.npz": "text"}, {}),
        ("no data file at", {}, {}),
    ],
)  # fmt: skip
def test_bad_files_are_refused(tmp_path: Path, text: str, files: dict[str, str], options: Any) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    refused(text, lambda: Federation.from_files(tmp_path, **({"label": "y"} | options)))


def test_bad_paths_and_archives_are_refused(tmp_path: Path) -> None:
    refused("is not there", lambda: Federation.from_files([tmp_path / "a.csv"], label="y"))
    refused("paths is empty", lambda: Federation.from_files([], label="y"))
    (tmp_path / "a.xlsx").write_text("")
    refused("convert it to one", lambda: Federation.from_files([tmp_path / "a.xlsx"], label="y"))
    np.savez(tmp_path / "a.npz", data=np.ones(3))
    refused("must hold arrays x and y, it has 'data'", lambda: Federation.from_files([tmp_path / "a.npz"]))
    np.savez(tmp_path / "a.npz", x=np.ones((3, 2)), y=np.ones(3))
    np.savez(tmp_path / "b.npz", x=np.ones((3, 4)), y=np.ones(3))
    refused(
        "b.npz has samples of shape [4], a.npz of [2]", lambda: Federation.from_files(str(tmp_path / "*.npz"))
    )
    np.savez(tmp_path / "c.npz", x=np.array([object()]), y=np.ones(1))  # a pickle inside
    refused("cannot be read as npz", lambda: Federation.from_files([tmp_path / "c.npz"]))


# ----------------------------------------------------------------------------------------- plot, size, imports


@pytest.mark.parametrize(
    ("clients", "classes", "kind", "traces"),
    [
        (3, 2, "bar", 2),
        (3, 5, "bar", 5),
        (3, 20, "heatmap", 1),
        (70, 2, "heatmap", 1),
        (2500, 3, "heatmap", 1),
    ],
)
def test_plot(clients: int, classes: int, kind: str, traces: int) -> None:
    n = max(clients * 4, classes * 6)
    fed = Federation.from_arrays(np.zeros((n, 1)), np.arange(n) % classes, clients=np.arange(n) % clients)
    figure = fed.plot()
    assert {trace.type for trace in figure.data} == {kind}
    assert len(figure.data) == traces
    assert len(figure.data[0].x) == min(clients, 2000)
    if kind == "bar":
        total = sum(np.sum(trace.y) for trace in figure.data)
        assert total == n
    assert ("th client drawn" in figure.layout.title.text) == (clients > 2000)
    assert len(figure.to_json()) > 100


def test_plot_without_classes_and_without_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = Federation.from_arrays(X, clients=GROUPS)
    assert list(fed.plot().data[0].y) == [3, 3]

    def no_module(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(errors.importlib, "import_module", no_module)
    refused("plot needs plotly: pip install 'fedsaddle[report]'", fed.plot)


def test_a_million_clients() -> None:
    start = time.perf_counter()
    n = 2_000_000
    fed = Federation.from_arrays(
        torch.zeros(n, 1), np.arange(n) % 2, clients=np.random.default_rng(0).permutation(n) // 2
    )
    assert fed.n_clients == 1_000_000
    assert fed.class_counts().shape == (1_000_000, 2)
    assert len(repr(fed.holdout(0.5))) < 200
    assert time.perf_counter() - start < 30


def test_the_module_does_not_import_heavy_packages() -> None:
    import subprocess
    import sys

    code = "import sys, fedsaddle.data; print({'pandas', 'plotly', 'sklearn', 'scipy', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_another_separator_is_suspected(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,died\n60,1\n50,0\n")
    (tmp_path / "b.csv").write_text("age;died\n60;1\n50;0\n")
    said = "b.csv has no column 'died': it has 'age;died'; is ';' between its columns? set sep, or write it as the others"
    refused(said, lambda: Federation.from_files(str(tmp_path / "*.csv"), label="died"))
