"""Residual networks, MobileNetV2, EfficientNet and ViT, and pretrained weights."""
