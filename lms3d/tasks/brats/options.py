"""What `lms3d.train --task brats` leaves to the user. The defaults of `TrainConfig` are this task's."""

from lms3d.tasks.choices import Choices

CHOICES = Choices(
    summary="tumours in brain scans", models=("isensee2017", "unet3d"), losses=("dice", "dice_cross_entropy")
)
