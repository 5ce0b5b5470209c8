#include "models/tensors/bundle.h"

#include "test/support/catch.h"

#include <ATen/ATen.h>

namespace stagecraft {

TEST_CASE("a bundle of one travels as that value, with its memory", "[bundle]") {
  const at::Tensor value = at::arange(6, at::kFloat).view({2, 3});
  const BoundarySpec spec(Bundle{value});
  CHECK(spec.shape == std::vector<std::int64_t>{2, 3});
  CHECK(spec.dtype == at::kFloat);
  CHECK(packed({value}).is_same(value));
  CHECK(unpacked(spec, value).at(0).is_same(value));
}

TEST_CASE("several values travel as one tensor of bytes and come out as they went in", "[bundle]") {
  const Bundle bundle{at::arange(5, at::kDouble),  at::arange(7, at::kLong),
                      at::ones({3}, at::kBool),    at::randn({2, 3, 4}).to(at::kBFloat16),
                      at::full({}, 7, at::kFloat), at::empty({0, 3}, at::kFloat)};
  const BoundarySpec spec(bundle);
  CHECK(spec.dtype == at::kByte);
  CHECK(spec.bytes() == 64 * 5);  // 40, 56, 3, 48, 4 and 0 bytes
  const at::Tensor tensor = packed(bundle);
  CHECK(static_cast<std::int64_t>(tensor.nbytes()) == spec.bytes());
  const Bundle again = unpacked(spec, tensor);
  REQUIRE(again.size() == bundle.size());
  for (std::size_t i = 0; i < bundle.size(); ++i) {
    INFO(i);
    CHECK(again[i].scalar_type() == bundle[i].scalar_type());
    CHECK(again[i].sizes() == bundle[i].sizes());
    CHECK(at::equal(again[i], bundle[i]));
    if (again[i].numel() > 0) CHECK(again[i].storage().is_alias_of(tensor.storage()));
    CHECK(again[i].storage_offset() * static_cast<std::int64_t>(again[i].element_size()) % kValueAlignment ==
          0);
  }
}

TEST_CASE("gradients are a bundle of the floating-point values", "[bundle]") {
  const BoundarySpec spec(Bundle{at::ones({2, 3}), at::ones({4}, at::kLong), at::ones({5}, at::kHalf)});
  const BoundarySpec gradients = spec.gradients();
  REQUIRE(gradients.values.size() == 2);
  CHECK(gradients.values[0] == ValueSpec{{2, 3}, at::kFloat});
  CHECK(gradients.values[1] == ValueSpec{{5}, at::kHalf});
  const BoundarySpec one = BoundarySpec(Bundle{at::ones({2, 3}), at::ones({4}, at::kLong)}).gradients();
  CHECK(one.shape == std::vector<std::int64_t>{2, 3});
  CHECK(one.dtype == at::kFloat);
}

}  // namespace stagecraft
