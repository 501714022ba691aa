"""Residual networks, MobileNetV2, EfficientNet, ViT and the U-Net, and pretrained weights."""
