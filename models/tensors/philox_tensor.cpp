#include "models/tensors/philox_tensor.h"

#include "base/error.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <c10/util/accumulate.h>

#include <array>
#include <cmath>
#include <numbers>
#include <utility>

namespace stagecraft {
namespace {

constexpr std::int64_t kWord = 0xFFFFFFFF;

/// Products of two words fill 64 bits and wrap into the sign, which the mask takes off again.
at::Tensor high(const at::Tensor& product) { return product.bitwise_right_shift(32).bitwise_and_(kWord); }
at::Tensor low(const at::Tensor& product) { return product.bitwise_and(kWord); }

constexpr std::int64_t kMostElements = std::int64_t{1} << 33;
constexpr int kDoubleDigits = 53;

int mantissa_digits(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return kDoubleDigits;
    case at::kFloat:
      return 24;
    case at::kHalf:
      return 11;
    case at::kBFloat16:
      return 8;
    default:
      throw InternalError("random numbers are of a floating type");
  }
}

}  // namespace

at::Tensor philox_words(const RandomStream& stream, std::int64_t blocks, at::Device device) {
  const at::TensorOptions options = at::TensorOptions(device).dtype(at::kLong);
  const PhiloxBlock start = stream.counter();
  std::array<at::Tensor, 4> c{at::arange(blocks, options)};
  for (std::size_t i = 1; i < c.size(); ++i) {
    c[i] = at::full({blocks}, static_cast<std::int64_t>(start[i]), options);
  }
  if (const at::Tensor& name = stream.key.on_device; name.defined()) {  // in the words of counter()
    c[1] = low(name).expand({blocks});
    c[2] = high(name).expand({blocks});
  }
  auto key0 = static_cast<std::uint32_t>(stream.key.seed);
  auto key1 = static_cast<std::uint32_t>(stream.key.seed >> 32);
  for (int round = 0; round < 10; ++round) {  // as philox_round()
    const at::Tensor p0 = c[0].mul(std::int64_t{0xD2511F53}), p1 = c[2].mul(std::int64_t{0xCD9E8D57});
    c = {high(p1).bitwise_xor_(c[1]).bitwise_xor_(std::int64_t{key0}), low(p1),
         high(p0).bitwise_xor_(c[3]).bitwise_xor_(std::int64_t{key1}), low(p0)};
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return at::stack(c);
}

at::Tensor uniform_numbers(at::IntArrayRef shape, at::ScalarType dtype, const RandomStream& stream,
                           at::Device device) {
  const std::int64_t size = c10::multiply_integers(shape);
  STAGECRAFT_CHECK(size <= kMostElements, "a tensor of random numbers is limited to 2^33 elements");
  const int digits = mantissa_digits(dtype);
  const at::Tensor words = philox_words(stream, (size + 1) / 2, device);
  const at::Tensor bits = words.slice(0, 0, 4, 2)
                              .bitwise_left_shift(21)
                              .bitwise_or_(words.slice(0, 1, 4, 2).bitwise_right_shift(11))
                              .bitwise_right_shift_(kDoubleDigits - digits);
  const at::Tensor numbers = bits.to(at::kDouble).mul_(std::ldexp(1.0, -digits)).to(dtype);
  return numbers.t().reshape({-1}).narrow(0, 0, size).view(shape);
}

at::Tensor normal_numbers(at::IntArrayRef shape, at::ScalarType dtype, const RandomStream& stream,
                          at::Device device) {
  const std::int64_t size = c10::multiply_integers(shape), blocks = (size + 1) / 2;
  const at::Tensor pairs = uniform_numbers({blocks, 2}, at::kDouble, stream, device);
  const at::Tensor radius = pairs.select(1, 0).neg().log1p_().mul_(-2).sqrt_();  // 1 - u is never 0
  const at::Tensor angle = pairs.select(1, 1).mul(2 * std::numbers::pi);
  const at::Tensor numbers = at::stack({angle.cos().mul_(radius), angle.sin().mul_(radius)}, 1);
  return numbers.view({-1}).narrow(0, 0, size).to(dtype).view(shape);
}

at::Tensor exponential_numbers(at::IntArrayRef shape, at::ScalarType dtype, const RandomStream& stream,
                               at::Device device) {
  const double least = std::ldexp(1.0, dtype == at::kHalf ? -24 : -54);
  return uniform_numbers(shape, at::kDouble, stream, device)
      .neg_()
      .log1p_()
      .neg_()
      .clamp_min_(least)
      .to(dtype);
}

at::Tensor bernoulli_numbers(at::IntArrayRef shape, at::ScalarType dtype, double probability,
                             const RandomStream& stream, at::Device device) {
  return uniform_numbers(shape, at::kDouble, stream, device).lt(probability).to(dtype);
}

}  // namespace stagecraft
