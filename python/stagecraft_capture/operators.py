"""The operators that a run executes: ATen's, in the order of models/captured/operators/operators.cpp
(test/scripts/capture_test.py compares them). A capture refuses others, with the line of Python that called
for them, before a run would."""

NAMES = frozenset(
    """
nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward mse_loss mse_loss_backward
multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward multilabel_margin_loss_backward
smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward binary_cross_entropy
binary_cross_entropy_backward binary_cross_entropy_with_logits addmm mm bmm baddbmm mv dot vdot t
transpose.int permute view reshape _unsafe_view expand expand_as unsqueeze squeeze squeeze.dim squeeze.dims
slice.Tensor select.int diagonal unfold split.Tensor split_with_sizes unbind.int chunk detach alias contiguous
_to_copy clone copy lift_fresh_copy cat stack repeat roll flip rot90 constant_pad_nd reflection_pad1d
reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward replication_pad2d
replication_pad2d_backward select_backward slice_backward diagonal_backward unfold_backward select_scatter
slice_scatter im2col col2im pixel_shuffle pixel_unshuffle native_channel_shuffle channel_shuffle add.Tensor
add.Scalar sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar mul.Tensor mul.Scalar div.Tensor div.Scalar
div.Tensor_mode div.Scalar_mode floor_divide remainder.Scalar remainder.Tensor neg abs sign sgn reciprocal
floor ceil round trunc pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar square rsqrt sqrt exp expm1 exp2 log
log1p log2 sin sinc cos tan atan atan2 hypot sinh cosh erf maximum minimum clamp clamp.Tensor clamp_min
clamp_max clamp_min.Tensor clamp_max.Tensor lerp.Scalar lerp.Tensor addcmul addcdiv nan_to_num tanh
tanh_backward sigmoid sigmoid_backward silu silu_backward gelu gelu_backward relu threshold threshold_backward
hardtanh hardtanh_backward hardswish hardswish_backward hardsigmoid hardsigmoid_backward leaky_relu
leaky_relu_backward elu elu_backward celu softplus softplus_backward mish mish_backward log_sigmoid_forward
log_sigmoid_backward glu glu_backward _prelu_kernel _prelu_kernel_backward softshrink softshrink_backward
hardshrink hardshrink_backward _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data
_safe_softmax mean mean.dim sum sum.dim_IntList prod prod.dim_int var.correction var.dim var_mean.correction
std.correction linalg_vector_norm amax amin max.dim min.dim median.dim kthvalue argmax argmin logsumexp any
any.dim all all.dim cumsum cumprod value_selecting_reduction_backward sort topk where.self where.ScalarSelf
where.ScalarOther masked_fill.Scalar masked_fill.Tensor eq.Tensor eq.Scalar ne.Tensor ne.Scalar lt.Tensor
lt.Scalar le.Tensor le.Scalar gt.Tensor gt.Scalar ge.Tensor ge.Scalar logical_not logical_and logical_or
logical_xor bitwise_and.Tensor bitwise_and.Scalar bitwise_or.Tensor bitwise_or.Scalar bitwise_xor.Tensor
bitwise_not isnan isinf tril triu arange arange.start arange.start_step full ones zeros eye linspace ones_like
zeros_like full_like empty_like new_zeros new_ones new_empty new_full scalar_tensor fill.Scalar fill.Tensor
convolution convolution_backward max_pool2d_with_indices max_pool2d_with_indices_backward
max_pool3d_with_indices max_pool3d_with_indices_backward avg_pool2d avg_pool2d_backward avg_pool3d
avg_pool3d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d
_adaptive_avg_pool3d_backward adaptive_max_pool2d adaptive_max_pool2d_backward upsample_nearest1d
upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d.vec upsample_nearest2d_backward
upsample_linear1d upsample_linear1d_backward upsample_bilinear2d upsample_bilinear2d.vec
upsample_bilinear2d_backward upsample_bicubic2d upsample_bicubic2d.vec upsample_bicubic2d_backward
upsample_nearest3d upsample_nearest3d_backward _upsample_nearest_exact1d _upsample_nearest_exact1d_backward
_upsample_nearest_exact2d _upsample_nearest_exact2d_backward _upsample_nearest_exact3d
_upsample_nearest_exact3d_backward upsample_trilinear3d upsample_trilinear3d_backward native_batch_norm
native_batch_norm_backward _native_batch_norm_legit_functional _native_batch_norm_legit.no_stats
_native_batch_norm_legit_no_training native_layer_norm native_layer_norm_backward native_group_norm
native_group_norm_backward _fused_rms_norm _weight_norm_interface _weight_norm_interface_backward _trilinear
_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward embedding
embedding_dense_backward index.Tensor index_put index_select index_add gather scatter.src scatter.value
scatter_add linear matmul outer layer_norm group_norm rms_norm softmax.int log_softmax.int conv1d conv2d
conv3d max_pool2d adaptive_avg_pool2d adaptive_avg_pool1d pad repeat_interleave.self_int flatten.using_ints
unflatten.int narrow movedim.int view_as reshape_as type_as to.dtype scaled_dot_product_attention
""".split()
)
