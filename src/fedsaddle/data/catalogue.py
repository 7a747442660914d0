"""The table of data sets: what they are, which files they consist of, where these come from.

Digests in `STORED` are of prepared files (the layout of a shared data folder). Digests of upstream files are
the ones that their authors or scikit-learn publish; LIBSVM and UCI's census publish none, so for these the
numbers of rows are checked and the digest of the first download is recorded beside the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from fedsaddle.data import formats
from fedsaddle.data.dataset import DatasetInfo, File, Layout, Raw
from fedsaddle.errors import FedsaddleError, optional_import

LIBSVM_URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
CENSUS_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/census-income-mld/"
FASHION_URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
MEDMNIST_URL = "https://zenodo.org/record/6496656/files/{}.npz?download=1"

STORED = {  # sha256
    "a9a.bz2": "1dcb2b4aedea0b5a9e964192dd211675d16cf05ab6477ddd0702d87c1d1af8da",
    "a9a.t.bz2": "e55725b53c3c47f7053bd3ef12e41555539eac4c0fe989e69345cc4dd0ea6e8d",
    "w8a.bz2": "d7fe0ec5079fb8fb0901f85ecbbf87e05698600dc0326e0edbe222426b438801",
    "ijcnn1.tr.bz2": "77a67b8333bb92fd9d93b67122c0bfbeefc8f80c6c818009d9aeabc3b7d3ccbd",
    "ijcnn1.val.bz2": "3b87f23e1d220cd812c6d03f9fa9758d44011ed13ae14fb19607390d9f6f4299",
    "ijcnn1.t.bz2": "acd1db430684fdd3f0c768ecc49aa8e749d0004fc117611220c2aa576a7b6a24",
    "phishing.bz2": "cbb192651568d8543aff9f1095f93f2f966f9babfc520311e569d0888b5d784b",
    "covtype.csv.xz": "346334160ef5e07a2e1d675d83f8472ade54964de8c94095e853a5a50b7662fa",
    "data_batch_1.npz": "c409fb67ad9878590b1bec37759de80aae18d3fbaa48ec3c472e7a335a2f0e43",
    "data_batch_2.npz": "bf2221173ad7049b87aec010a6d6a8b34b56a9b580a2a5713629b1588b12d3c1",
    "data_batch_3.npz": "44b7bb8f9af0be897c95bec2d2d086f3e9f0691663a69dc4e624c0b304a90fde",
    "data_batch_4.npz": "6495e4f479c26a43920c06a3fe781340509712e7132966fecb911028bd07d338",
    "data_batch_5.npz": "6fa218fb1d98f576008cc8255cf93a13b50dd04835258fc243ca08d62335a609",
    "test_batch.npz": "eb7f25aad5d238b2c1bcb0dca81c52fd1efe6660801b3bbf15589ee6a1323b57",
    "train.npz": "fb186a145d980d302ccb9721b460cf24cb18dc56d9e6929b25b1d34a8100a4f5",
    "test.npz": "407b7fa0a1bea6ba925c3700c1aceec4041a527499da0697eba4e223efba6744",
    "pneumoniamnist_28.npz": "0a226e0b4e4530755d7bbd3a04e39ba9fb87cddc481a053041dc3da133f835d0",
    "census-income.data.xz": "b6f9c6ee45eceb629ae9f724f061bc66410c71cb32fe441402163e3591fde066",
    "census-income.test.xz": "c7292c345b7ea235d828380d0f871316cb476f41750c605cee01db47a24f7bf8",
}

CIFAR10_TAR = File(
    "cifar-10-binary.tar.gz",
    "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
)
CIFAR100_TAR = File(
    "cifar-100-binary.tar.gz",
    "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
)
COVTYPE_GZ = File(
    "covtype.data.gz",
    "sha256:614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",
    "https://ndownloader.figshare.com/files/5976039",  # scikit-learn's copy of UCI's file
)
FASHION_GZ = [
    File(f"{name}.gz", f"md5:{md5}", f"{FASHION_URL}{name}.gz")
    for name, md5 in (
        ("train-images-idx3-ubyte", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        ("train-labels-idx1-ubyte", "25c81989df183df01b3e8a0aad5dffbe"),
        ("t10k-images-idx3-ubyte", "bef4ecab320f06d8554ea6380940ec79"),
        ("t10k-labels-idx1-ubyte", "bb300cfdad3c16e7a12a480ee83cd310"),
    )
]

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
CHEST_LABELS = (
    "atelectasis", "cardiomegaly", "effusion", "infiltration", "mass", "nodule", "pneumonia", "pneumothorax",
    "consolidation", "edema", "emphysema", "fibrosis", "pleural", "hernia",
)  # fmt: skip


# ------------------------------------------------------------------------------------- bundled and generated


def _sklearn(loader: str) -> Callable[[], Raw]:
    def generate() -> Raw:
        bunch = getattr(optional_import("sklearn.datasets", loader), loader)()
        kind = np.float32 if loader == "load_diabetes" else np.int64
        return Raw(
            {"train": (bunch.data.astype(np.float32), bunch.target.astype(kind))}, tuple(bunch.feature_names)
        )

    return generate


def synthetic_binary(
    *, n: int = 2000, features: int = 20, positive_rate: float = 0.1, separation: float = 2.0, seed: int = 0
) -> Raw:
    """Two Gaussian classes, `separation` deviations apart along a random direction; n / 4 test samples.

    Args:
        n: training samples.
        features: dimension of x.
        positive_rate: share of positives, exact up to rounding, in (0, 1).
        separation: distance between the class means; the best possible AUC is Phi(separation / sqrt(2)).
        seed: the same seed gives the same data.
    """
    if n < 2 or features < 1 or not 0 < positive_rate < 1:
        got = f"n={n}, features={features}, positive_rate={positive_rate}"
        raise FedsaddleError(
            f"synthetic_binary: n must be >= 2, features >= 1, positive_rate in (0, 1), got {got}"
        )
    rng = np.random.default_rng(seed)
    direction = rng.standard_normal(features)
    direction /= np.linalg.norm(direction)
    parts = {}
    for part, size in (("train", n), ("test", max(n // 4, 2))):
        positives = min(max(round(positive_rate * size), 1), size - 1)
        y = rng.permutation(np.arange(size) < positives).astype(np.int64)
        x = rng.standard_normal((size, features)) + separation * np.outer(y - 0.5, direction)
        parts[part] = (x.astype(np.float32), y)
    return Raw(parts, tuple(f"x{i}" for i in range(features)))


# ------------------------------------------------------------------------------------------------ from files


def _libsvm(
    name: str, n_features: int, stored: Mapping[str, File], upstream: Mapping[str, str], **info: Any
) -> DatasetInfo:
    read = partial(formats.libsvm, n_features=n_features)
    fetch = {part: (File(file, url=LIBSVM_URL + file),) for part, file in upstream.items()}
    layouts = [Layout({part: (file,) for part, file in stored.items()}, read)] if stored else []
    source = "LIBSVM data, https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/; " + info.pop("source")
    return DatasetInfo(name, source=source, folder=name, layouts=(*layouts, Layout(fetch, read)), **info)


def _medmnist(name: str, md5: str, stored: File | None = None, **info: Any) -> DatasetInfo:
    read = info.pop("read", formats.medmnist)
    source = "MedMNIST v2 (Yang et al. 2023), CC BY 4.0; " + info.pop("source")
    fetch = File(f"{name}.npz", f"md5:{md5}", MEDMNIST_URL.format(name))
    parts = ("train", "valid", "test")
    layouts = [Layout(dict.fromkeys(parts, (stored,)), read)] if stored else []
    layouts += [Layout(dict.fromkeys(parts, (fetch,)), read)]
    return DatasetInfo(
        name, source=source, folder=name, layouts=tuple(layouts), scale="unit", image=True, **info
    )


def _chest(paths: formats.Paths, *, label: str = "mass") -> Raw:
    """ChestMNIST with one of its 14 findings as the label."""
    if label not in CHEST_LABELS:
        raise FedsaddleError(f"chestmnist: label must be one of {', '.join(CHEST_LABELS)}, got {label!r}")
    return formats.medmnist(paths, label=label, label_names=CHEST_LABELS)._replace(
        classes=("no " + label, label)
    )


def _stored(name: str) -> File:
    return File(name, "sha256:" + STORED[name])


_BUNDLED = (
    DatasetInfo(
        "breast_cancer",
        "569 breast tumours, 30 features; malignant is positive",
        "Wolberg et al. 1995 (UCI), CC BY 4.0",
        classes=("malignant", "benign"),
        positive="malignant",
        generate=_sklearn("load_breast_cancer"),
        bundled="scikit-learn",
        scale="standard",
        facts={"train": (212, 357)},
    ),
    DatasetInfo(
        "digits",
        "1797 handwritten digits of 8x8 pixels, as 64 columns",
        "Alpaydin and Kaynak 1998 (UCI), CC BY 4.0",
        classes=tuple("0123456789"),
        generate=_sklearn("load_digits"),
        bundled="scikit-learn",
        scale="unit",
        facts={"train": 1797},
    ),
    DatasetInfo(
        "wine",
        "178 wines of three cultivars, 13 features",
        "Aeberhard and Forina 1992 (UCI), CC BY 4.0",
        classes=("class_0", "class_1", "class_2"),
        generate=_sklearn("load_wine"),
        bundled="scikit-learn",
        scale="standard",
        facts={"train": (59, 71, 48)},
    ),
    DatasetInfo(
        "iris",
        "150 irises of three species, 4 features",
        "Fisher 1936 (UCI), CC BY 4.0",
        classes=("setosa", "versicolor", "virginica"),
        generate=_sklearn("load_iris"),
        bundled="scikit-learn",
        scale="standard",
        facts={"train": (50, 50, 50)},
    ),
    DatasetInfo(
        "diabetes",
        "442 diabetes patients, 10 features, regression of disease progression",
        "Efron et al. 2004",
        generate=_sklearn("load_diabetes"),
        bundled="scikit-learn",
        facts={"train": 442},
    ),
    DatasetInfo(
        "synthetic_binary",
        "two Gaussian classes of chosen size, dimension, positive rate and separation",
        "generated",
        classes=("negative", "positive"),
        generate=synthetic_binary,
        bundled="generated",
    ),
)

_TABLES = (
    _libsvm(
        "a9a",
        123,
        stored={"train": _stored("a9a.bz2"), "test": _stored("a9a.t.bz2")},
        upstream={"train": "a9a", "test": "a9a.t"},
        description="48,842 US adults, 123 indicator features; income above 50K is positive",
        source="UCI Adult (Kohavi 1996), CC BY 4.0; Platt 1998",
        classes=("<=50K", ">50K"),
        facts={"train": (24720, 7841), "test": (12435, 3846)},
    ),
    _libsvm(
        "w8a",
        300,
        stored={"train": _stored("w8a.bz2"), "test": File("w8a.t.bz2", optional=True)},
        upstream={"train": "w8a", "test": "w8a.t"},
        description="49,749 web pages, 300 key words, 3 % positive; the test file is used where it is there",
        source="Platt 1998",
        classes=("-1", "+1"),
        facts={"train": (48270, 1479), "test": 14951},
    ),
    _libsvm(
        "ijcnn1",
        22,
        stored={
            "train": _stored("ijcnn1.tr.bz2"),
            "valid": _stored("ijcnn1.val.bz2"),
            "test": _stored("ijcnn1.t.bz2"),
        },
        upstream={"train": "ijcnn1.tr.bz2", "valid": "ijcnn1.val.bz2", "test": "ijcnn1.t.bz2"},
        description="141,691 engine signals, 22 features, 10 % positive; train, validation and test",
        source="Prokhorov 2001; Chang and Lin 2001",
        classes=("-1", "+1"),
        facts={"train": (31585, 3415), "valid": (13552, 1438), "test": (82989, 8712)},
    ),
    _libsvm(
        "phishing",
        68,
        stored={"train": _stored("phishing.bz2")},
        upstream={"train": "phishing"},
        description="11,055 web sites, 68 features, rows of unit length",
        source="Mohammad et al. 2012 (UCI), CC BY 4.0",
        classes=("0", "1"),
        facts={"train": (4898, 6157)},
    ),
    _libsvm(
        "gisette",
        5000,
        stored={},
        upstream={"train": "gisette_scale.bz2", "test": "gisette_scale.t.bz2"},
        description="7,000 handwritten 4s and 9s, 5000 features in [-1, 1]",
        source="Guyon et al. 2004 (NIPS 2003)",
        classes=("-1", "+1"),
        facts={"train": (3000, 3000), "test": (500, 500)},
    ),
    DatasetInfo(
        "covtype",
        "581,012 forest patches, 54 features, 7 cover types; type 2 against the rest unless told otherwise",
        "Blackard and Dean 1999 (UCI), CC BY 4.0",
        classes=tuple("1234567"),
        positive="2",
        scale="unit",
        numeric=10,
        folder="covtype",
        facts={"train": (211840, 283301, 35754, 2747, 9493, 17367, 20510)},
        layouts=(
            Layout({"train": (_stored("covtype.csv.xz"),)}, formats.covtype),
            Layout({"train": (COVTYPE_GZ,)}, formats.covtype),
        ),
    ),
    DatasetInfo(
        "census_income",
        "299,285 US persons, 7 numeric and 33 nominal columns; income above 50K is positive (6 %)",
        "UCI Census-Income (KDD), CPS 1994-95, CC BY 4.0",
        classes=("- 50000", "50000+"),
        scale="standard",
        numeric=len(formats.CENSUS_NUMERIC),
        folder="census_income_kdd",
        facts={"train": (187141, 12382), "test": (93576, 6186)},
        layouts=(
            Layout(
                {
                    "train": (_stored("census-income.data.xz"),),
                    "test": (_stored("census-income.test.xz"),),
                },
                formats.census,
            ),
            Layout(
                {
                    "train": (File("census-income.data.gz", url=CENSUS_URL + "census-income.data.gz"),),
                    "test": (File("census-income.test.gz", url=CENSUS_URL + "census-income.test.gz"),),
                },
                formats.census,
            ),
        ),
    ),
)

_IMAGES = (
    DatasetInfo(
        "cifar10",
        "60,000 colour images of 3x32x32 in ten classes",
        "Krizhevsky 2009, no formal licence",
        classes=CIFAR10_CLASSES,
        folder="cifar10",
        image=True,
        scale="unit",
        facts={"train": (5000,) * 10, "test": (1000,) * 10},
        layouts=(
            Layout(
                {
                    "train": tuple(_stored(f"data_batch_{i}.npz") for i in range(1, 6)),
                    "test": (_stored("test_batch.npz"),),
                },
                formats.image_npz,
            ),
            Layout(dict.fromkeys(("train", "test"), (CIFAR10_TAR,)), formats.cifar10_binary),
        ),
    ),
    DatasetInfo(
        "cifar100",
        "60,000 colour images of 3x32x32 in 100 classes",
        "Krizhevsky 2009, no formal licence",
        classes=tuple(map(str, range(100))),  # the file brings the names
        folder="cifar100",
        image=True,
        scale="unit",
        facts={"train": (500,) * 100, "test": (100,) * 100},
        layouts=(Layout(dict.fromkeys(("train", "test"), (CIFAR100_TAR,)), formats.cifar100_binary),),
    ),
    DatasetInfo(
        "fashion_mnist",
        "70,000 grey images of clothing, 28x28, in ten classes",
        "Xiao, Rasul, Vollgraf 2017 (Zalando), MIT",
        classes=FASHION_CLASSES,
        folder="fashion_mnist",
        image=True,
        scale="unit",
        facts={"train": (6000,) * 10, "test": (1000,) * 10},
        layouts=(
            Layout(
                {part: (_stored(f"{part}.npz"),) for part in ("train", "test")},
                formats.image_npz,
            ),
            Layout({"train": tuple(FASHION_GZ[:2]), "test": tuple(FASHION_GZ[2:])}, formats.idx),
        ),
    ),
    _medmnist(
        "pneumoniamnist",
        "28209eda62fecd6e6a2d98b1501bb15f",
        _stored("pneumoniamnist_28.npz"),
        description="5,856 chest X-rays of 28x28; pneumonia is positive; the rows may be sorted by class",
        source="images of Kermany et al. 2018",
        classes=("normal", "pneumonia"),
        facts={"train": (1214, 3494), "valid": (135, 389), "test": (234, 390)},
    ),
    _medmnist(
        "breastmnist",
        "750601b1f35ba3300ea97c75c52ff8f6",
        description="780 breast ultrasound images of 28x28; malignant is positive",
        source="images of Al-Dhabyani et al. 2020",
        classes=("malignant", "normal, benign"),
        positive="malignant",
        facts={"train": 546, "valid": 78, "test": 156},
    ),
    _medmnist(
        "chestmnist",
        "02c8a6516a18b556561a56cbdd36c4a8",
        read=_chest,
        description="112,120 chest X-rays of 28x28 with 14 findings; label= chooses one, mass unless told",
        source="images of Wang et al. 2017",
        classes=("no finding", "finding"),
        facts={"train": 78468, "valid": 11219, "test": 22433},
    ),
)

DATASETS: dict[str, DatasetInfo] = {info.name: info for info in (*_BUNDLED, *_TABLES, *_IMAGES)}
