#include "models/check/watch.h"

#include "base/place_error.h"
#include "models/tensors/libtorch_error.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <cstring>

namespace stagecraft {

bool attempt(Checked& checked, const std::function<std::string()>& work) {
  try {
    checked.said = work();
    checked.result = Checked::Result::passed;
  } catch (const Broken& broken) {
    checked = {Checked::Result::failed, broken.what()};
  } catch (...) {
    checked = {Checked::Result::failed, thrown_text(without_stack(std::current_exception(), ""))};
    return false;
  }
  return true;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

bool same_bits(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i], b[i])) return false;
  }
  return true;
}

Tensors clones(const Tensors& tensors) {
  Tensors copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.defined() ? tensor.clone() : at::Tensor());
  return copies;
}

void Watch::add(const std::string& name, const at::Tensor& tensor) {
  if (tensor.defined()) watched_.push_back({name, tensor, tensor.clone()});
}

void Watch::add_all(const std::string& name, const Tensors& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    add(tensors.size() == 1 ? name : fmt::format("{} {}", name, i), tensors[i]);
  }
}

void Watch::require_untouched(const std::string& who) const {
  for (const Watched& watched : watched_) {
    require(same_bits(watched.tensor, watched.before),
            fmt::format("{} modifies {}: it has to make new tensors", who, watched.name));
  }
}

}  // namespace stagecraft
