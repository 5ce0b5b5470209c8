#include "models/tensors/bundle.h"

#include "base/error.h"

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <utility>

namespace stagecraft {
namespace {

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kValueAlignment - 1) / kValueAlignment * kValueAlignment;
}

std::vector<ValueSpec> specs_of(const Bundle& bundle) {
  std::vector<ValueSpec> specs;
  for (const at::Tensor& value : bundle) specs.push_back({value.sizes().vec(), value.scalar_type()});
  return specs;
}

/// Of a packed tensor, the place of one value.
at::Tensor place_of(const at::Tensor& tensor, std::int64_t at, const ValueSpec& spec) {
  return tensor.narrow(0, at, spec.bytes()).view(spec.dtype).view(spec.shape);
}

}  // namespace

std::int64_t ValueSpec::bytes() const {
  return c10::multiply_integers(shape) * static_cast<std::int64_t>(c10::elementSize(dtype));
}

std::vector<std::int64_t> ValueSpec::of_one_sample() const {
  if (shape.empty()) return {};
  return {shape.begin() + 1, shape.end()};
}

BoundarySpec::BoundarySpec(std::vector<ValueSpec> its_values) : values(std::move(its_values)) {
  STAGECRAFT_CHECK(!values.empty(), "a bundle of nothing");
  if (values.size() == 1) {
    shape = values.front().shape;
    dtype = values.front().dtype;
    return;
  }
  std::int64_t sum = 0;
  for (const ValueSpec& value : values) sum += aligned(value.bytes());
  shape = {sum};
  dtype = at::kByte;
}

BoundarySpec::BoundarySpec(const Bundle& bundle) : BoundarySpec(specs_of(bundle)) {}

std::int64_t BoundarySpec::bytes() const { return ValueSpec{shape, dtype}.bytes(); }

BoundarySpec BoundarySpec::gradients() const {
  std::vector<ValueSpec> with;
  for (const ValueSpec& value : values) {
    if (value.has_gradient()) with.push_back(value);
  }
  return BoundarySpec(std::move(with));
}

at::Tensor packed(const Bundle& bundle) {
  if (bundle.size() == 1) return bundle.front();
  const BoundarySpec spec(bundle);
  at::Tensor tensor = at::empty(spec.shape, bundle.front().options().dtype(spec.dtype));
  std::int64_t at = 0;
  for (std::size_t i = 0; i < bundle.size(); ++i) {
    place_of(tensor, at, spec.values[i]).copy_(bundle[i]);
    at += aligned(spec.values[i].bytes());
  }
  return tensor;
}

Bundle unpacked(const BoundarySpec& spec, const at::Tensor& tensor) {
  if (spec.values.size() == 1) return {tensor};
  Bundle bundle;
  std::int64_t at = 0;
  for (const ValueSpec& value : spec.values) {
    bundle.push_back(place_of(tensor, at, value));
    at += aligned(value.bytes());
  }
  return bundle;
}

Bundle contiguous(Bundle bundle) {
  for (at::Tensor& value : bundle) {
    if (value.defined()) value = value.contiguous();
  }
  return bundle;
}

}  // namespace stagecraft
