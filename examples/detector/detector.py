"""torchvision's RetinaNet as a pipeline takes it: its backbone and head, and its loss over all anchors.

torchvision's own forward takes images of any size and lists of boxes, picks anchors by their numbers, and
returns no losses in evaluation. Which box an anchor is for depends on boxes alone, so the data say it, and
masks stand for what is picked.
"""

import torch
import torchvision
from torch.nn import functional as F
from torchvision.models.detection.image_list import ImageList

BACKGROUND, BETWEEN = -1, -2  # in place of a class: no box is there; neither a box nor background


class Detector(torch.nn.Module):
    """Of images of one size, [samples, 3, height, width], normalized as the model wants them."""

    def __init__(self, detector: torch.nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.head

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        return self.head(list(self.backbone(images).values()))


@torch.no_grad()
def anchors_of(detector: torch.nn.Module, side: int) -> torch.Tensor:
    """Corners of all anchors of an image of side x side."""
    image, training = torch.zeros(1, 3, side, side), detector.training
    features = list(detector.eval().backbone(image).values())
    detector.train(training)
    return detector.anchor_generator(ImageList(image, [(side, side)]), features)[0]


def targets_of(
    detector: torch.nn.Module, anchors: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Of one image's boxes: what each anchor shall say. One row of a file of arrays, or of a data set."""
    if not len(boxes):
        matched = torch.full((len(anchors),), BACKGROUND)
        return {"classes": matched, "offsets": torch.zeros_like(anchors)}
    matched = detector.proposal_matcher(torchvision.ops.box_iou(boxes, anchors))
    classes = torch.where(matched >= 0, labels[matched.clamp(min=0)], matched)
    offsets = detector.box_coder.encode_single(boxes[matched.clamp(min=0)], anchors)
    return {"classes": classes, "offsets": offsets}


def loss(output: dict[str, torch.Tensor], batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """RetinaNet's: a focal loss of classes and the distance of boxes, by the anchors of each image."""
    logits, classes = output["cls_logits"], batch["classes"]
    there = classes >= 0
    wanted = F.one_hot(classes.clamp(min=0), logits.shape[-1]) * there.unsqueeze(-1)
    focal = torchvision.ops.sigmoid_focal_loss(logits, wanted.to(logits.dtype)).sum(-1)
    apart = F.l1_loss(output["bbox_regression"], batch["offsets"], reduction="none").sum(-1)
    count = there.sum(1).clamp(min=1)
    of_classes = (focal * (classes != BETWEEN)).sum(1) / count
    of_boxes = (apart * there).sum(1) / count
    return {
        "loss": (of_classes + of_boxes).mean(),
        "classification": of_classes.mean(),
        "bbox_regression": of_boxes.mean(),
    }


def retinanet(classes: int) -> torch.nn.Module:
    return torchvision.models.detection.retinanet_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=classes
    )
