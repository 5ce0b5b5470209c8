#include "models/tensors/random.h"

#include "base/error.h"
#include "models/layers/dropout_masks.h"
#include "models/tensors/philox_tensor.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>

using namespace stagecraft;

namespace {

const RandomKey kKey{1234567890123, 5, 77, 3};

}  // namespace

TEST_CASE("Philox gives the known answers of Random123", "[random]") {
  // kat_vectors of Random123 1.14, philox4x32 10.
  const std::uint32_t ones = 0xffffffff;
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({ones, ones, ones, ones}, {ones, ones}) ==
        PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("streams of different names have different counters", "[random]") {
  const PhiloxBlock base = RandomStream{kKey, 2}.counter();
  CHECK(base[0] == 0);
  CHECK(RandomStream{{kKey.seed, 6, 77, 3}, 2}.counter() != base);
  CHECK(RandomStream{{kKey.seed, 5, 78, 3}, 2}.counter() != base);
  CHECK(RandomStream{{kKey.seed, 5, 77, 4}, 2}.counter() != base);
  CHECK(RandomStream{kKey, 3}.counter() != base);
  CHECK_THROWS_AS((RandomStream{{1, 1 << 20, 0, 0}, 0}.counter()), InternalError);
  CHECK_THROWS_AS((RandomStream{{1, 0, std::uint64_t{1} << 32, 0}, 0}.counter()), InternalError);
}

TEST_CASE("a dropout mask is the stream's bits", "[random]") {
  // The vectorized order, written out: element i of 128 has half i/64 of word (i/16)%4 of block i%16.
  const double probability = 0.3;
  const auto threshold = static_cast<std::uint32_t>(std::lround(probability * 65536));
  const at::Tensor mask = Dropout(probability, 1).mask({1000}, kKey);
  const std::array key{static_cast<std::uint32_t>(kKey.seed), static_cast<std::uint32_t>(kKey.seed >> 32)};
  int wrong = 0;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    PhiloxBlock counter = RandomStream{kKey, 1}.counter();
    counter[0] = i / 128 * 16 + i % 16;
    const std::uint32_t word = philox4x32(counter, key)[i / 16 % 4];
    const std::uint32_t bits = i % 128 < 64 ? word & 0xffff : word >> 16;
    wrong += mask[i].item<bool>() != (bits >= threshold);
  }
  CHECK(wrong == 0);
}

TEST_CASE("dropout masks repeat by name, differ between names and drop at their rate", "[random]") {
  const Dropout dropout(0.25);
  const at::Tensor mask = dropout.mask({300, 401}, kKey);
  CHECK(at::equal(mask, dropout.mask({300, 401}, kKey)));
  // 5 standard deviations of the mean of so many coins.
  const double tolerance = 5 * std::sqrt(0.25 * 0.75 / (300 * 401));
  CHECK(std::abs(mask.to(at::kDouble).mean().item<double>() - 0.75) < tolerance);

  std::vector<RandomKey> others(4, kKey);
  others[0].seed += 1;
  others[1].layer += 1;
  others[2].step += 1;
  others[3].micro_batch += 1;
  std::vector<at::Tensor> masks{mask, Dropout(0.25, 1).mask({300, 401}, kKey)};
  for (const RandomKey& key : others) masks.push_back(dropout.mask({300, 401}, key));
  for (std::size_t a = 0; a < masks.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      // Independent masks agree on 0.75^2 + 0.25^2 of the elements.
      CHECK(std::abs(masks[a].eq(masks[b]).to(at::kDouble).mean().item<double>() - 0.625) < 0.01);
    }
  }
}

TEST_CASE("dropout in place, in one go and by mask are one", "[random]") {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const Dropout dropout(0.1);
    const at::Tensor x = at::randn({7, 333}).to(dtype);
    at::Tensor in_place = x.clone();
    const at::Tensor mask = dropout.drop_(in_place, kKey);
    CHECK(at::equal(mask, dropout.mask(x.sizes(), kKey)));
    CHECK(at::equal(in_place, dropout.apply(x, mask)));
    at::Tensor again = x.clone();
    dropout.apply_(again, mask);
    CHECK(at::equal(in_place, again));
    CHECK(at::equal(in_place.eq(0), mask.logical_not()));
    CHECK(at::allclose(in_place.to(at::kDouble), x.to(at::kDouble) * mask / 0.9, 1e-2, 1e-4));
  }
}

TEST_CASE("threads change nothing", "[random]") {
  const int threads = at::get_num_threads();
  const auto draw = [](int count) {
    at::set_num_threads(count);
    at::Tensor normal = at::empty({100'003});
    fill_normal(normal, {kKey, kInitialStream}, 2);
    return std::pair{Dropout(0.5).mask({1'000'003}, kKey), normal};
  };
  const auto [mask1, normal1] = draw(1);
  const auto [mask3, normal3] = draw(3);
  at::set_num_threads(threads);
  CHECK(at::equal(mask1, mask3));
  CHECK(at::equal(normal1, normal3));
}

TEST_CASE("uniform numbers are the stream's bits, and ones have their probability", "[random]") {
  const RandomStream stream{kKey, 5};
  const at::Tensor doubles = uniform_numbers({3, 5}, at::kDouble, stream, at::kCPU);
  const at::Tensor words = philox_words(stream, 8, at::kCPU);
  const at::Tensor flat = doubles.flatten();
  for (std::int64_t i = 0; i < 15; ++i) {
    const std::int64_t high = words[2 * (i % 2)][i / 2].item<std::int64_t>(),
                       low = words[2 * (i % 2) + 1][i / 2].item<std::int64_t>();
    CHECK(flat[i].item<double>() == static_cast<double>((high << 21) | (low >> 11)) * 0x1p-53);
  }
  const at::Tensor singles = uniform_numbers({15}, at::kFloat, stream, at::kCPU);
  CHECK(at::equal(singles, doubles.flatten().mul(0x1p24).floor().mul(0x1p-24).to(at::kFloat)));
  const at::Tensor many = uniform_numbers({100'000}, at::kBFloat16, stream, at::kCPU).to(at::kDouble);
  CHECK(many.max().item<double>() < 1);
  CHECK(many.min().item<double>() == 0);
  CHECK(many.mean().item<double>() == Approx(0.498).epsilon(0.01));
  const at::Tensor ones = bernoulli_numbers({100'000}, at::kFloat, 0.7, stream, at::kCPU);
  CHECK(ones.mean().item<double>() == Approx(0.7).epsilon(0.01));
  CHECK(at::equal(ones, ones.mul(ones)));
  CHECK(bernoulli_numbers({1000}, at::kFloat, 1, stream, at::kCPU).sum().item<double>() == 1000);
  CHECK(bernoulli_numbers({1000}, at::kFloat, 0, stream, at::kCPU).sum().item<double>() == 0);
}

TEST_CASE("normal numbers have their distribution, and a prefix of a stream is a prefix", "[random]") {
  const RandomStream stream{kKey, 6};
  const at::Tensor normal = normal_numbers({200, 501}, at::kDouble, stream, at::kCPU);
  CHECK(std::abs(normal.mean().item<double>()) < 5 / std::sqrt(100'200.0));
  CHECK(normal.std().item<double>() == Approx(1).epsilon(0.02));
  CHECK((normal.abs() < 1).to(at::kDouble).mean().item<double>() == Approx(0.6827).epsilon(0.02));
  at::Tensor filled = at::empty({7}, at::kDouble);
  fill_normal(filled, stream, 1);
  CHECK(at::allclose(normal_numbers({7}, at::kDouble, stream, at::kCPU), filled, 1e-14, 1e-14));
  CHECK(at::allclose(normal.flatten().slice(0, 0, 7), filled, 1e-14, 1e-14));
  CHECK(normal_numbers({3, 1}, at::kBFloat16, stream, at::kCPU).scalar_type() == at::kBFloat16);
  const at::Tensor exponential = exponential_numbers({200, 501}, at::kDouble, stream, at::kCPU);
  CHECK(std::abs(exponential.mean().item<double>() - 1) < 0.02);
  CHECK(std::abs(exponential.std().item<double>() - 1) < 0.03);
  CHECK(exponential_numbers({1000, 100}, at::kHalf, stream, at::kCPU).min().item<double>() > 0);
}

TEST_CASE("initial values have their distribution", "[random]") {
  at::Tensor normal = at::empty({200, 501}, at::kDouble);
  fill_normal(normal, {kKey, kInitialStream}, 0.02);
  CHECK(std::abs(normal.mean().item<double>()) < 5 * 0.02 / std::sqrt(100'200.0));
  CHECK(normal.std().item<double>() == Approx(0.02).epsilon(0.02));
  CHECK((normal.abs() < 0.02).to(at::kDouble).mean().item<double>() == Approx(0.6827).epsilon(0.02));
  at::Tensor uniform = at::empty({200, 501}, at::kDouble);
  fill_uniform(uniform, {kKey, kInitialStream + 1}, 3);
  CHECK(uniform.abs().max().item<double>() <= 3);
  CHECK(uniform.max().item<double>() > 2.99);
  CHECK(uniform.min().item<double>() < -2.99);
  CHECK(std::abs(uniform.mean().item<double>()) < 5 * 3 / std::sqrt(300'600.0));
  // A prefix of a stream is a prefix, single precision is double rounded.
  at::Tensor prefix = at::empty({7});
  fill_normal(prefix, {kKey, kInitialStream}, 0.02);
  CHECK(at::equal(prefix, normal.flatten().slice(0, 0, 7).to(at::kFloat)));
}
