"""Models of packages that are captured from a file of Python, as `stagecraft-capture FILE.py:build --loss
FILE.py:loss` does it, small: of timm, of diffusers, and torchvision's for segmentation. "group:name": how it
is made, its loss as an expression of (output, batch), and what the capture is told."""

from typing import Any

CLASSES = "torch.nn.functional.cross_entropy(output, batch['label'])"
NOISE = "torch.nn.functional.mse_loss(output.sample, batch['noise'])"
MASKS = (
    "sum(torch.nn.functional.cross_entropy(masks, batch['mask']) * (1 if name == 'out' else 0.5)"
    " for name, masks in output.items())"
)

# timm: name: (pixels of a side, settings)
TIMM: dict[str, tuple[int, dict[str, Any]]] = {
    "edgenext_xx_small": (64, {}),
    "efficientvim_m1": (224, {}),
    "efficientvit_b0": (64, {}),
    "mvitv2_tiny": (64, dict(img_size=64)),
}
SMALL = dict(sample_size=8, patch_size=2, num_layers=2, in_channels=4)
TEXT = "--field encoder_hidden_states=f32[6,32]"
STEP = "--field timestep=i64[]<1000"
BLOCKS = dict(sample_size=8, block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1)
AUTOENCODER = dict(
    in_channels=3,
    out_channels=3,
    block_out_channels=(8, 16),
    layers_per_block=1,
    norm_num_groups=4,
    down_block_types=("DownEncoderBlock2D",) * 2,
    up_block_types=("UpDecoderBlock2D",) * 2,
)
# diffusers: class: (settings, sizes of its output and of its input, the rest of what the capture is told)
DIFFUSERS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "SD3Transformer2DModel": (
        dict(
            SMALL,
            attention_head_dim=8,
            num_attention_heads=4,
            joint_attention_dim=32,
            caption_projection_dim=32,
            pooled_projection_dim=16,
            out_channels=4,
            pos_embed_max_size=8,
        ),
        "4,8,8",
        "4,8,8",
        f"{TEXT} {STEP} --field pooled_projections=f32[16]",
    ),
    "PixArtTransformer2DModel": (
        dict(
            SMALL,
            attention_head_dim=8,
            num_attention_heads=4,
            cross_attention_dim=32,
            out_channels=8,
            caption_channels=32,
            use_additional_conditions=False,
        ),
        "8,8,8",
        "4,8,8",
        f"{TEXT} {STEP}",
    ),
    "WanTransformer3DModel": (
        dict(
            patch_size=(1, 2, 2),
            num_attention_heads=2,
            attention_head_dim=12,
            in_channels=4,
            out_channels=4,
            text_dim=32,
            freq_dim=32,
            ffn_dim=32,
            num_layers=2,
            rope_max_seq_len=32,
        ),
        "4,2,8,8",
        "4,2,8,8",
        f"{TEXT} {STEP}",
    ),
    "UNet2DModel": (
        dict(
            BLOCKS,
            in_channels=3,
            out_channels=3,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            attention_head_dim=4,
        ),
        "3,8,8",
        "3,8,8",
        STEP,
    ),
    "UNet2DConditionModel": (
        dict(
            BLOCKS,
            in_channels=4,
            out_channels=4,
            cross_attention_dim=32,
            attention_head_dim=4,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        ),
        "4,8,8",
        "4,8,8",
        f"{TEXT} {STEP}",
    ),
    "AutoencoderKL": (dict(AUTOENCODER, latent_channels=4), "3,16,16", "3,16,16", ""),
    "VQModel": (dict(AUTOENCODER, latent_channels=3, num_vq_embeddings=12), "3,16,16", "3,16,16", ""),
}
SEGMENTATION = ("lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large")


def sources() -> dict[str, tuple[str, str, str]]:
    """ "group:name": what makes the module, its loss, and what the capture is told."""
    found = {}
    for name, (side, settings) in TIMM.items():
        told = f"--input 3,{side},{side} --field label=i64[]<10"
        found[f"timm:{name}"] = f"timm.create_model({name!r}, num_classes=10, **{settings})", CLASSES, told
    for name, (settings, made, read, more) in DIFFUSERS.items():
        told = f"--input {read} --field noise=f32[{made}] {more}"
        found[f"diffusers:{name}"] = f"diffusers.{name}(**{settings})", NOISE, told
    for name in SEGMENTATION:
        made = f"torchvision.models.get_model({name!r}, weights=None, weights_backbone=None, num_classes=4)"
        found[f"segmentation:{name}"] = made, MASKS, "--input 3,64,64 --field mask=i64[64,64]<4"
    return found
