"""Classes of transformers besides those of the tables in capture_table.py, small: "class": (type of its config, settings, what the capture is told).
They are captured as `stagecraft-capture --hf` does it."""

TEXT = dict(vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, tie_word_embeddings=False, max_position_embeddings=64, bos_token_id=0, eos_token_id=0, pad_token_id=1)
GROUPED = dict(vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, tie_word_embeddings=False, max_position_embeddings=64, bos_token_id=0, eos_token_id=0, pad_token_id=1, num_key_value_heads=2)
VISION = dict(image_size=32, patch_size=8, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
BART = dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=96, max_position_embeddings=64, pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2)
AUDIO = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, conv_dim=[16, 16, 16], conv_kernel=[10, 3, 2], conv_stride=[5, 2, 2], num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, num_feat_extract_layers=3, vocab_size=32, classifier_proj_size=16, mask_time_prob=0.0, mask_feature_prob=0.0, layerdrop=0.0, num_labels=5)
T5 = dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=96, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
CLIP_TEXT = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=96, max_position_embeddings=16, eos_token_id=95, bos_token_id=0, pad_token_id=1)

CLASSES = {
    "MambaForCausalLM": ("mamba", dict(TEXT, state_size=4), "--sequence 12"),
    "Mamba2ForCausalLM": ("mamba2", dict(TEXT, state_size=8, num_heads=8, head_dim=8, n_groups=1, expand=2, chunk_size=4), "--sequence 12"),
    "JambaForCausalLM": ("jamba", dict(GROUPED, num_hidden_layers=4, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1, num_experts=4, num_experts_per_tok=2, mamba_d_state=4, mamba_dt_rank=4, use_mamba_kernels=False), "--sequence 12"),
    "RwkvForCausalLM": ("rwkv", dict(vocab_size=96, hidden_size=32, attention_hidden_size=32, num_hidden_layers=2, context_length=64), "--sequence 12"),
    "MixtralForCausalLM": ("mixtral", dict(GROUPED, num_experts=4, num_local_experts=4, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32), "--sequence 12"),
    "Qwen2MoeForCausalLM": ("qwen2_moe", dict(GROUPED, num_experts=4, num_local_experts=4, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32), "--sequence 12"),
    "OlmoeForCausalLM": ("olmoe", dict(GROUPED, num_experts=4, num_local_experts=4, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32), "--sequence 12"),
    "DeepseekV3ForCausalLM": ("deepseek_v3", dict(GROUPED, num_key_value_heads=4, num_experts=4, num_local_experts=4, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, n_group=2, topk_group=1, first_k_dense_replace=1), "--sequence 12"),
    "Lfm2ForCausalLM": ("lfm2", dict(GROUPED, layer_types=["conv", "full_attention"]), "--sequence 12"),
    "XLNetLMHeadModel": ("xlnet", dict(vocab_size=96, d_model=32, n_layer=2, n_head=4, d_inner=64), "--sequence 12"),
    "FunnelForMaskedLM": ("funnel", dict(vocab_size=96, d_model=32, n_head=4, d_head=8, d_inner=64, block_sizes=[1, 1]), "--sequence 12"),
    "LongformerForMaskedLM": ("longformer", dict(TEXT, attention_window=[4, 4]), "--sequence 12"),
    "PerceiverForMaskedLM": ("perceiver", dict(num_latents=4, d_latents=16, d_model=32, num_blocks=1, num_self_attends_per_block=2, num_self_attention_heads=2, num_cross_attention_heads=2, vocab_size=96, max_position_embeddings=12), "--sequence 12"),
    "CanineForSequenceClassification": ("canine", dict(TEXT, num_hash_functions=2, num_hash_buckets=16, local_transformer_stride=8, upsampling_kernel_size=4, downsampling_rate=4), "--sequence 16"),
    "BertModel": ("bert", TEXT, "--sequence 12"),
    "BertForNextSentencePrediction": ("bert", TEXT, "--sequence 12 --field labels=i64[1]<2"),
    "MarianMTModel": ("marian", BART, "--sequence 12"),
    "LEDForConditionalGeneration": ("led", dict(BART, attention_window=4, max_encoder_position_embeddings=64, max_decoder_position_embeddings=64), "--sequence 12"),
    "SwitchTransformersForConditionalGeneration": ("switch_transformers", dict(T5, num_experts=4, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, expert_capacity=8), "--sequence 12"),
    "WhisperForConditionalGeneration": ("whisper", dict(vocab_size=96, num_mel_bins=8, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=20, max_target_positions=16, pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2), "--input 8,40 --field labels=i64[10]<96"),
    "WhisperForAudioClassification": ("whisper", dict(num_mel_bins=8, d_model=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=64, max_source_positions=20, num_labels=5, classifier_proj_size=16, pad_token_id=1), "--input 8,40 --field labels=i64[]<5"),
    "ASTForAudioClassification": ("audio-spectrogram-transformer", dict(VISION, max_length=32, num_mel_bins=16, frequency_stride=8, time_stride=8, num_labels=5), "--input 32,16 --field labels=i64[]<5"),
    "Wav2Vec2ForSequenceClassification": ("wav2vec2", AUDIO, "--input 400 --field labels=i64[]<5"),
    "Wav2Vec2ForCTC": ("wav2vec2", AUDIO, "--input 400 --field labels=i64[4]<20"),
    "HubertForSequenceClassification": ("hubert", AUDIO, "--input 400 --field labels=i64[]<5"),
    "VideoMAEForVideoClassification": ("videomae", dict(VISION, num_frames=4, tubelet_size=2, num_labels=3), "--input 4,3,32,32 --field labels=i64[]<3"),
    "ViTMAEForPreTraining": ("vit_mae", dict(VISION, decoder_hidden_size=16, decoder_num_hidden_layers=1, decoder_num_attention_heads=2, decoder_intermediate_size=32), "--input 3,32,32"),
    "SegformerForSemanticSegmentation": ("segformer", dict(hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 1, 1], decoder_hidden_size=16, num_labels=4), "--input 3,64,64 --field labels=i64[64,64]<4"),
    "CLIPModel": ("clip", dict(text_config=CLIP_TEXT, vision_config=VISION, projection_dim=16), "--input 3,32,32 --field input_ids=i64[12]<96"),
    "CLIPForImageClassification": ("clip", dict(text_config=CLIP_TEXT, vision_config=VISION, projection_dim=16, num_labels=3), "--input 3,32,32"),
    "ViltForQuestionAnswering": ("vilt", dict(TEXT, image_size=32, patch_size=8, num_labels=3), "--sequence 12 --field pixel_values=f32[3,32,32] --field labels=f32[3]"),
    "LlavaForConditionalGeneration": ("llava", dict(text_config=dict(GROUPED, model_type="llama"), vision_config=dict(VISION, model_type="clip_vision_model"), image_token_index=90, vision_feature_layer=-1), "--sequence 24 --field pixel_values=f32[3,32,32] --field labels=i64[24]<96"),
    "GitForCausalLM": ("git", dict(TEXT, vision_config=VISION), "--sequence 12 --field pixel_values=f32[3,32,32]"),
    "PatchTSTForPrediction": ("patchtst", dict(num_input_channels=2, context_length=16, patch_length=4, patch_stride=4, prediction_length=4, d_model=16, num_attention_heads=2, num_hidden_layers=2, ffn_dim=32, loss="mse"), "--input 16,2 --field future_values=f32[4,2]"),
}
