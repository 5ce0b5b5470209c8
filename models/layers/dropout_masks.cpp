#include "models/layers/dropout_masks.h"

#include "base/error.h"
#include "models/tensors/philox_tensor.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_dropout_backward.h>
#include <ATen/ops/stack.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>

namespace stagecraft {
namespace {

// Sixteen blocks at a time, their words side by side, so that the compiler turns the rounds into vector code.
// A group of them is 64 words, 128 elements: element i has 16 bits of word i mod 64.
constexpr std::uint32_t kBlocks = 16;
constexpr std::int64_t kWords = 64, kElements = 128;
constexpr std::int64_t kGroupsPerTask = 64;

void draw_group(const PhiloxBlock& start, std::uint64_t seed, std::uint32_t group, std::uint32_t* words) {
  std::uint32_t a[kBlocks], b[kBlocks], c[kBlocks], d[kBlocks];
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    a[i] = group * kBlocks + i;
    b[i] = start[1];
    c[i] = start[2];
    d[i] = start[3];
  }
  auto key0 = static_cast<std::uint32_t>(seed);
  auto key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (std::uint32_t i = 0; i < kBlocks; ++i) {
      const PhiloxBlock next = philox_round({a[i], b[i], c[i], d[i]}, key0, key1);
      a[i] = next[0];
      b[i] = next[1];
      c[i] = next[2];
      d[i] = next[3];
    }
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    words[i] = a[i];
    words[kBlocks + i] = b[i];
    words[2 * kBlocks + i] = c[i];
    words[3 * kBlocks + i] = d[i];
  }
}

/// The mask of one group.
void keep_group(const PhiloxBlock& start, std::uint64_t seed, std::uint32_t group, std::uint32_t threshold,
                std::uint8_t* keep) {
  std::uint32_t words[kWords];
  draw_group(start, seed, group, words);
  for (std::int64_t i = 0; i < kWords; ++i) {
    keep[i] = (words[i] & 0xFFFF) >= threshold;
    keep[kWords + i] = (words[i] >> 16) >= threshold;
  }
}

/// Draws the mask of `size` elements; `then(first, count)` follows each group while it is in cache.
template <class Then>
void draw(std::int64_t size, const RandomStream& stream, std::uint32_t threshold, std::uint8_t* keep,
          const Then& then) {
  const PhiloxBlock start = stream.counter();
  STAGECRAFT_CHECK(size >> 34 == 0, "a dropout mask is limited to 2^34 elements");
  at::parallel_for(
      0, (size + kElements - 1) / kElements, kGroupsPerTask, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t group = begin; group < end; ++group) {
          const std::int64_t first = group * kElements;
          const std::int64_t count = std::min(kElements, size - first);
          if (count == kElements) {
            keep_group(start, stream.key.seed, static_cast<std::uint32_t>(group), threshold, keep + first);
          } else {
            std::uint8_t last[kElements];
            keep_group(start, stream.key.seed, static_cast<std::uint32_t>(group), threshold, last);
            std::copy_n(last, count, keep + first);
          }
          then(first, count);
        }
      });
}

/// The same mask from the same words: of a group, element i has the low half of word i mod 64 for i below 64,
/// else the high one, and word 16 k + b is word k of block b.
at::Tensor draw_on_device(at::IntArrayRef shape, const RandomStream& stream, std::uint32_t threshold,
                          at::Device device) {
  const std::int64_t size = c10::multiply_integers(shape);
  STAGECRAFT_CHECK(size >> 34 == 0, "a dropout mask is limited to 2^34 elements");
  const std::int64_t groups = (size + kElements - 1) / kElements;
  const at::Tensor words =
      philox_words(stream, groups * kBlocks, device).view({4, groups, kBlocks}).transpose(0, 1);
  const at::Tensor halves = at::stack({words.bitwise_and(0xFFFF), words.bitwise_right_shift(16)}, 1);
  return halves.ge(std::int64_t{threshold}).view({-1}).narrow(0, 0, size).view(shape);
}

template <class T>
void scale_kept(const T* x, const std::uint8_t* keep, float scale, std::int64_t count, T* y) {
  for (std::int64_t i = 0; i < count; ++i)
    y[i] = static_cast<T>(x[i] * static_cast<T>(static_cast<float>(keep[i]) * scale));
}
void scale_kept(const double* x, const std::uint8_t* keep, double scale, std::int64_t count, double* y) {
  for (std::int64_t i = 0; i < count; ++i) y[i] = x[i] * (keep[i] * scale);
}

/// y = mask * scale * x, for dense x and y, which may be the same, and a mask of as many elements.
void scale_tensor(const at::Tensor& x, const at::Tensor& mask, double scale, at::Tensor& y) {
  const at::Tensor dense = mask.contiguous();
  const auto* keep = reinterpret_cast<const std::uint8_t*>(dense.const_data_ptr<bool>());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "dropout", [&] {
    const auto* from = x.const_data_ptr<scalar_t>();
    auto* to = y.mutable_data_ptr<scalar_t>();
    using Scale = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
    at::parallel_for(0, x.numel(), kGroupsPerTask * kElements, [&](std::int64_t begin, std::int64_t end) {
      scale_kept(from + begin, keep + begin, static_cast<Scale>(scale), end - begin, to + begin);
    });
  });
}

}  // namespace

Dropout::Dropout(double probability, std::uint32_t stream)
    : probability_(probability),
      threshold_(static_cast<std::uint32_t>(std::lround(probability * 65536))),
      scale_(65536.0 / (65536 - threshold_)),
      stream_(stream) {
  STAGECRAFT_CHECK(probability >= 0 && threshold_ < 65536, "a dropout probability lies in [0, 1)");
}

bool Dropout::applies(const Context& context) const { return threshold_ > 0 && context.mode == Mode::train; }

at::Tensor Dropout::mask(at::IntArrayRef shape, const RandomKey& key, at::Device device) const {
  if (!device.is_cpu()) return draw_on_device(shape, {key, stream_}, threshold_, device);
  at::Tensor mask = at::empty(shape, at::kBool);
  auto* keep = reinterpret_cast<std::uint8_t*>(mask.mutable_data_ptr<bool>());
  draw(mask.numel(), {key, stream_}, threshold_, keep, [](std::int64_t, std::int64_t) {});
  return mask;
}

at::Tensor Dropout::drop_(at::Tensor& x, const RandomKey& key) const {
  if (x.is_meta()) return at::empty_like(x, at::kBool);
  STAGECRAFT_CHECK(x.is_contiguous(), "dropout in place works on dense tensors");
  if (!x.is_cpu()) {
    at::Tensor drawn = mask(x.sizes(), key, x.device());
    x = apply(x, drawn);
    return drawn;
  }
  at::Tensor mask = at::empty(x.sizes(), at::kBool);
  auto* keep = reinterpret_cast<std::uint8_t*>(mask.mutable_data_ptr<bool>());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "dropout", [&] {
    auto* data = x.mutable_data_ptr<scalar_t>();
    using Scale = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
    draw(x.numel(), {key, stream_}, threshold_, keep, [&](std::int64_t first, std::int64_t count) {
      scale_kept(data + first, keep + first, static_cast<Scale>(scale_), count, data + first);
    });
  });
  return mask;
}

at::Tensor Dropout::apply(const at::Tensor& x, const at::Tensor& mask) const {
  if (x.is_meta()) return at::empty_like(x);
  if (!x.is_cpu()) return at::native_dropout_backward(x, mask, scale_);
  const at::Tensor dense = x.contiguous();
  at::Tensor y = at::empty_like(dense);
  scale_tensor(dense, mask, scale_, y);
  return y;
}

void Dropout::apply_(at::Tensor& x, const at::Tensor& mask) const {
  if (x.is_meta()) return;
  if (!x.is_cpu()) {
    x = apply(x, mask);
    return;
  }
  STAGECRAFT_CHECK(x.is_contiguous(), "dropout in place works on dense tensors");
  scale_tensor(x, mask, scale_, x);
}

}  // namespace stagecraft
