#include "models/tensors/random.h"

#include "base/error.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <numbers>

namespace stagecraft {
namespace {

constexpr std::int64_t kBlocksPerTask = 1024;

/// Two uniform numbers with 53 random bits from one block: in [0, 1).
std::array<double, 2> uniform_pair(const PhiloxBlock& bits) {
  const auto join = [](std::uint32_t high, std::uint32_t low) {
    return static_cast<double>(((std::uint64_t{high} << 32) | low) >> 11) * 0x1p-53;
  };
  return {join(bits[0], bits[1]), join(bits[2], bits[3])};
}

/// `pair(bits)` gives two values for elements 2i and 2i+1 from block i.
template <class Pair>
void fill(at::Tensor& tensor, const RandomStream& stream, const Pair& pair) {
  STAGECRAFT_CHECK(tensor.device().is_cpu() && tensor.is_contiguous(),
                   "values are drawn into dense CPU tensors");
  const std::int64_t size = tensor.numel();
  const PhiloxBlock start = stream.counter();
  const std::array key{static_cast<std::uint32_t>(stream.key.seed),
                       static_cast<std::uint32_t>(stream.key.seed >> 32)};
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, tensor.scalar_type(), "fill", [&] {
    using Wide = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
    auto* data = tensor.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, (size + 1) / 2, kBlocksPerTask, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t block = begin; block < end; ++block) {
        PhiloxBlock counter = start;
        counter[0] = static_cast<std::uint32_t>(block);
        const std::array<double, 2> values = pair(uniform_pair(philox4x32(counter, key)));
        data[2 * block] = static_cast<scalar_t>(static_cast<Wide>(values[0]));
        if (2 * block + 1 < size) data[2 * block + 1] = static_cast<scalar_t>(static_cast<Wide>(values[1]));
      }
    });
  });
}

}  // namespace

PhiloxBlock philox4x32(PhiloxBlock c, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    c = philox_round(c, key[0], key[1]);
    key[0] += kPhiloxWeyl0;
    key[1] += kPhiloxWeyl1;
  }
  return c;
}

PhiloxBlock RandomStream::counter() const {
  STAGECRAFT_CHECK(
      key.layer < (1U << 20) && stream < (1U << 12) && key.step >> 32 == 0 && key.micro_batch >> 32 == 0,
      "a random stream's name does not fit its counter");
  return {0, static_cast<std::uint32_t>(key.micro_batch), static_cast<std::uint32_t>(key.step),
          static_cast<std::uint32_t>(key.layer << 12) | stream};
}

void fill_uniform(at::Tensor& tensor, const RandomStream& stream, double half_width) {
  fill(tensor, stream, [half_width](const std::array<double, 2>& u) {
    return std::array{(2 * u[0] - 1) * half_width, (2 * u[1] - 1) * half_width};
  });
}

void fill_normal(at::Tensor& tensor, const RandomStream& stream, double deviation) {
  fill(tensor, stream, [deviation](const std::array<double, 2>& u) {
    // Box and Muller; 1 - u is never 0.
    const double radius = deviation * std::sqrt(-2 * std::log(1 - u[0]));
    const double angle = 2 * std::numbers::pi * u[1];
    return std::array{radius * std::cos(angle), radius * std::sin(angle)};
  });
}

}  // namespace stagecraft
