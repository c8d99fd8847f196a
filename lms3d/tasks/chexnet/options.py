"""What `lms3d.train --task chexnet` leaves to the user, and its defaults: those of the CheXNet scaling study."""

from lms3d.tasks.choices import Choices

CHOICES = Choices(
    summary="14 findings in chest X-rays",
    models=("densenet121", "resnet50"),
    losses=("binary_cross_entropy", "weighted"),
    defaults={
        "model": "densenet121",
        "resolution": 224,
        "batch_size": 16,
        "loss": "binary_cross_entropy",
        "learning_rate": 1e-3,
        "patience": 10,
    },
    refused=(
        "labels",
        "targets",
        "n4",
        "anti_alias",
        "normalisation",
        "split",
        "validation_fraction",
        "folds",
        "fold",
        "box",
        "patch",
        "symmetries",
        "distort",
        "start_from",
        "stages",
        "deep_supervision",
    ),
    refusal="where it is fixed or means nothing",
)  # fmt: skip
