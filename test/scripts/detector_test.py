"""examples/detector: RetinaNet's loss over all anchors is torchvision's, and its pipeline has the bits of the
plain loop."""

import pytest

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision", reason="scripts/setup.sh --models installs it")
pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")

from places import require_package

require_package()

from torchvision.models.detection import RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator

import stagecraft as sc
from detector import BETWEEN, Detector, anchors_of, loss, targets_of
from pipeline_cases import beside_eager

SIDE, CLASSES = 32, 3
BOXES = [
    (torch.tensor([[2.0, 3.0, 18.0, 20.0], [8.0, 8.0, 30.0, 27.0]]), torch.tensor([1, 2])),
    (torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)),
    (torch.tensor([[5.0, 5.0, 24.0, 26.0]]), torch.tensor([0])),
    (torch.tensor([[0.0, 10.0, 12.0, 22.0]]), torch.tensor([2])),
]


class Features(torch.nn.Module):
    """Of two sizes, as a pyramid makes them."""

    out_channels = 8

    def __init__(self):
        super().__init__()
        self.fine = torch.nn.Conv2d(3, 8, 3, stride=4, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.coarse = torch.nn.Conv2d(8, 8, 3, stride=2, padding=1)

    def forward(self, images):
        fine = self.norm(self.fine(images)).relu()
        return {"0": fine, "1": self.coarse(fine)}


@pytest.fixture(scope="module")
def retinanet():
    torch.manual_seed(0)
    return RetinaNet(
        Features(),
        CLASSES,
        min_size=SIDE,
        max_size=SIDE,
        image_mean=[0.0] * 3,
        image_std=[1.0] * 3,
        anchor_generator=AnchorGenerator(((8, 12), (16, 24)), ((0.5, 1.0, 2.0),) * 2),
    ).train()


def rows(retinanet, seed):
    anchors = anchors_of(retinanet, SIDE)
    made = [targets_of(retinanet, anchors, *boxes) for boxes in BOXES]
    batch = {name: torch.stack([each[name] for each in made]) for name in made[0]}
    return {"images": torch.rand(4, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed)), **batch}


def test_the_loss_is_torchvisions(retinanet):
    batch = rows(retinanet, 1)
    classes = batch["classes"]
    assert (classes == BETWEEN).any() and {*classes[classes >= 0].tolist()} == {0, 1, 2}
    targets = [{"boxes": boxes, "labels": labels} for boxes, labels in BOXES]
    theirs = retinanet(list(batch["images"]), targets)
    ours = loss(Detector(retinanet)(batch["images"]), batch)
    for name, of_torchvision in theirs.items():
        torch.testing.assert_close(ours[name], of_torchvision)
    assert theirs["bbox_regression"] > 0
    torch.testing.assert_close(ours["loss"], sum(theirs.values()))


def test_its_pipeline_has_the_bits_of_the_loop(retinanet):
    def of_loop(module, part):
        return loss(module(part["images"]), part)["loss"]

    batches = [rows(retinanet, seed) for seed in range(3)]
    step, _ = beside_eager(Detector(retinanet), batches, loss, of_loop, micro_batches=2, stages=2)
    assert {*step(batches[0]).terms} == {"classification", "bbox_regression"}


def test_detectors_as_they_are_are_refused(retinanet):
    batch = {"images": torch.rand(4, 3, SIDE, SIDE), "targets": [{"boxes": boxes} for boxes, _ in BOXES]}
    for model in (retinanet, torch.nn.Sequential(retinanet)):
        with pytest.raises(sc.InputError, match=r"capture backbone and head.*examples/detector/detector\.py"):
            sc.pipeline(model, batch, stages=2)
