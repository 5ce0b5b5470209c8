"""Models of packages that are captured from a file of Python, as `stagecraft-capture FILE.py:build --loss
FILE.py:loss` does it, small: of timm, of diffusers, and torchvision's for segmentation and detection.
"group:name": how it is made, its loss as an expression of (output, batch), and what the capture is told."""

from typing import Any

CLASSES = "torch.nn.functional.cross_entropy(output, batch['label'])"
NOISE = "torch.nn.functional.mse_loss(output.sample, batch['noise'])"
MASKS = (
    "sum(torch.nn.functional.cross_entropy(masks, batch['mask']) * (1 if name == 'out' else 0.5)"
    " for name, masks in output.items())"
)

TOKENS: dict[str, Any] = dict(img_size=32, depth=2)
ONE_EACH: dict[str, Any] = dict(depths=(1, 1, 1, 1))
# timm: name: (pixels of a side, settings)
TIMM: dict[str, tuple[int, dict[str, Any]]] = {
    "beit_base_patch16_224": (32, dict(TOKENS, embed_dim=32, num_heads=2)),
    "cait_xxs24_224": (32, dict(TOKENS, embed_dim=32, num_heads=2)),
    "convnext_atto": (64, ONE_EACH),
    "crossvit_tiny_240": (120, dict(img_size=120, depth=((1, 1, 0),) * 3)),
    "deit_tiny_distilled_patch16_224": (32, TOKENS),
    "edgenext_xx_small": (64, {}),
    "efficientnet_lite0": (64, {}),
    "efficientvim_m1": (224, {}),
    "efficientvit_b0": (64, {}),
    "eva02_tiny_patch14_224": (28, dict(img_size=28, depth=2)),
    "fasternet_t0": (64, ONE_EACH),
    "ghostnet_050": (64, {}),
    "levit_128s": (224, {}),
    "mambaout_femto": (64, ONE_EACH),
    "mobilenetv4_conv_small": (64, {}),
    "mvitv2_tiny": (64, dict(img_size=64)),
    "nest_tiny": (64, dict(img_size=64)),
    "nf_regnet_b0": (64, {}),
    "pit_ti_224": (64, dict(img_size=64)),
    "poolformer_s12": (64, {}),
    "regnety_002": (64, {}),
    "repvgg_a0": (64, {}),
    "sequencer2d_s": (56, dict(img_size=56, layers=(1, 1, 1, 1))),
    "starnet_s050": (64, {}),
    "tnt_s_legacy_patch16_224": (32, TOKENS),
    "twins_svt_small": (64, dict(ONE_EACH, img_size=64)),
    "vit_relpos_small_patch16_224": (32, TOKENS),
    "vit_tiny_patch16_224": (32, TOKENS),
    "xcit_nano_12_p16_224": (32, dict(depth=2)),
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
    "AuraFlowTransformer2DModel": (
        dict(
            sample_size=8,
            patch_size=2,
            in_channels=4,
            out_channels=4,
            num_mmdit_layers=1,
            num_single_dit_layers=1,
            attention_head_dim=8,
            num_attention_heads=4,
            joint_attention_dim=32,
            caption_projection_dim=32,
            pos_embed_max_size=16,
        ),
        "4,8,8",
        "4,8,8",
        f"{TEXT} {STEP}",
    ),
    "CogVideoXTransformer3DModel": (
        dict(
            num_attention_heads=2,
            attention_head_dim=16,
            in_channels=4,
            out_channels=4,
            time_embed_dim=8,
            text_embed_dim=32,
            num_layers=2,
            sample_width=8,
            sample_height=8,
            sample_frames=5,
            patch_size=2,
            max_text_seq_length=6,
        ),
        "2,4,8,8",
        "2,4,8,8",
        f"{TEXT} {STEP}",
    ),
    "SanaTransformer2DModel": (
        dict(
            in_channels=4,
            out_channels=4,
            num_layers=2,
            num_attention_heads=2,
            attention_head_dim=8,
            num_cross_attention_heads=2,
            cross_attention_head_dim=8,
            cross_attention_dim=16,
            caption_channels=32,
            sample_size=8,
            patch_size=1,
        ),
        "4,8,8",
        "4,8,8",
        f"{TEXT} {STEP}",
    ),
    "DiTTransformer2DModel": (
        dict(SMALL, attention_head_dim=8, num_attention_heads=2, out_channels=8),
        "8,8,8",
        "4,8,8",
        f"{STEP} --field class_labels=i64[]<1000",
    ),
    "AllegroTransformer3DModel": (
        dict(
            num_attention_heads=2,
            attention_head_dim=24,
            in_channels=4,
            out_channels=4,
            num_layers=2,
            cross_attention_dim=48,
            sample_width=8,
            sample_height=8,
            sample_frames=2,
            caption_channels=32,
        ),
        "4,2,8,8",
        "4,2,8,8",
        f"{TEXT} {STEP}",
    ),
    "LatteTransformer3DModel": (
        dict(
            SMALL,
            attention_head_dim=8,
            num_attention_heads=4,
            caption_channels=32,
            cross_attention_dim=32,
            out_channels=8,
            norm_type="ada_norm_single",
            norm_elementwise_affine=False,
            num_embeds_ada_norm=1000,
            video_length=2,
        ),
        "8,2,8,8",
        "4,2,8,8",
        f"{TEXT} {STEP}",
    ),
    "UNetSpatioTemporalConditionModel": (
        dict(
            sample_size=8,
            in_channels=4,
            out_channels=4,
            down_block_types=("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
            up_block_types=("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
            block_out_channels=(32, 64),
            num_attention_heads=(2, 4),
            layers_per_block=1,
            cross_attention_dim=32,
            addition_time_embed_dim=8,
            projection_class_embeddings_input_dim=24,
            num_frames=2,
        ),
        "2,4,8,8",
        "2,4,8,8",
        f"--field encoder_hidden_states=f32[1,32] {STEP} --field added_time_ids=f32[3]",
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
SEGMENTATION = (
    "lraspp_mobilenet_v3_large",
    "deeplabv3_mobilenet_v3_large",
    "deeplabv3_resnet50",
    "fcn_resnet50",
)
# As examples/detector has it; the others as torchvision has them.
DETECTION = "retinanet_resnet50_fpn"
OTHER_DETECTORS = ("fasterrcnn_resnet50_fpn", "fcos_resnet50_fpn", "maskrcnn_resnet50_fpn", "ssd300_vgg16")
ANCHORS = 774  # of an image of 64 x 64


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
    anchors = f"--field classes=i64[{ANCHORS}]<5 --field offsets=f32[{ANCHORS},4]"
    made, loss = "detector.Detector(detector.retinanet(5))", "detector.loss(output, batch)"
    found[f"detection:{DETECTION}"] = made, loss, f"--input 3,64,64 {anchors}"
    for name in OTHER_DETECTORS:
        made = f"torchvision.models.get_model({name!r}, weights=None, weights_backbone=None, num_classes=5)"
        found[f"detection:{name}"] = made, "sum(output.values())", "--input 3,64,64"
    return found
