"""Data sets of any organ: nnU-Net's raw folders, the Medical Segmentation Decathlon, and manifests."""
